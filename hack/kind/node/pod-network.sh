#!/bin/bash
# The pod network of a test cluster, one copy a node: pods get addresses from their node's range, and every node has a
# route to the range of every other. It stands in for kindnetd, which is no Go module, and enforces no NetworkPolicy.
set -euo pipefail

write_conflist() {
  cat > /etc/cni/net.d/.10-testbed.conflist <<EOF
{"cniVersion": "0.4.0", "name": "testbed", "plugins": [
  {"type": "ptp", "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
            "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": "$1"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
EOF
  mv /etc/cni/net.d/.10-testbed.conflist /etc/cni/net.d/10-testbed.conflist
}

echo 1 > /proc/sys/net/ipv4/ip_forward
# Pods reach the outside by their node's address, and each other by their own.
masquerade=(POSTROUTING -s "$POD_SUBNET" ! -d "$POD_SUBNET" -m addrtype ! --dst-type LOCAL -j MASQUERADE)
iptables -t nat -C "${masquerade[@]}" 2> /dev/null || iptables -t nat -A "${masquerade[@]}"

# A watch ends whenever the API server ends it; the next one starts with all nodes again.
while true; do
  kubectl get nodes --watch -o json \
    | jq --unbuffered -r '[.metadata.name, .spec.podCIDR // "", (.status.addresses[]? | select(.type == "InternalIP").address)] | @tsv' \
    | while IFS=$'\t' read -r node range address _; do
        if [[ -z $range || -z $address ]]; then
          continue
        elif [[ $node == "$NODE_NAME" ]]; then
          write_conflist "$range"
        else
          # A simulated node has an address that leads nowhere: no route is right then.
          ip route replace "$range" via "$address" || echo "no route to $node at $address" >&2
        fi
      done || true
  sleep 1
done
