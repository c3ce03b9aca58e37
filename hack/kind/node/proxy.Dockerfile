# kube-proxy and the pod network in one image: both need the packet filter's tools.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends conntrack iproute2 iptables jq kmod nftables \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
COPY kube-proxy kubectl pod-network.sh /usr/local/bin/
