# One file for every image of TorchYard; images/README.md says what is in each.
#
#   docker build --target operator --tag ghcr.io/torchyard/operator:0.1.0 .
#
# BASE_IMAGE replaces the base of whatever is built: any Debian or Ubuntu whose python3 is 3.11 to 3.13, or that can install one.
# A network with a CA of its own: put its certificates into build/ca.crt; only the stages that download ever see them.
# Plain instructions in the order of the targets: the builder without BuildKit makes the same images, and none it does not need.
ARG BASE_IMAGE
ARG VERSION=0.1.0

FROM ${BASE_IMAGE:-docker.io/library/python:3.13-slim-trixie@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285} AS base
RUN command -v python3 >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends python3; } \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
  && echo "torchyard:x:65532:65532:TorchYard:/tmp:/usr/sbin/nologin" >>/etc/passwd && echo "torchyard:x:65532:" >>/etc/group

FROM base AS build
COPY images/tools.sh images/build.lock build/ca.cr[t] /build/
RUN ["sh", "/build/tools.sh"]
ENV PATH=/build/tools/bin:$PATH PYTHONPATH=/build/tools
COPY images/packages.sh images/finish.sh /build/

# Our three rooms, as they lie on top of any set of packages, and the agent for images that are not ours.
FROM build AS ours
COPY images/ours.sh /build/
COPY pyproject.toml README.md /build/src/
COPY operator/ /build/src/operator/
COPY agent/ /build/src/agent/
COPY trainers/ /build/src/trainers/
COPY charts/ /build/src/charts/
COPY examples/ /build/src/examples/
COPY hack/wheel.py /build/src/hack/
RUN ["sh", "/build/ours.sh"]

FROM build AS operator-packages
COPY images/operator.lock /build/packages.lock
RUN ["sh", "/build/packages.sh"]

FROM base AS operator
COPY --from=operator-packages /image/ /
COPY --from=ours /agent/ /
COPY --from=ours /image/ /
ENV PATH=/opt/torchyard/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["torchyard"]
CMD ["operator"]
ARG VERSION
LABEL org.opencontainers.image.title="TorchYard operator" \
  org.opencontainers.image.description="Runs TrainingJobs on Kubernetes and keeps them training; also brings the agent into training pods." \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION"

FROM scratch AS agent
COPY --from=ours /agent/ /
ARG VERSION
LABEL org.opencontainers.image.title="TorchYard agent" \
  org.opencontainers.image.description="One file, to be mounted as an image volume: the first process of every training container." \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION"

FROM build AS trainer-cpu-packages
COPY images/trainer.lock /build/packages.lock
COPY images/cpu.sh /build/
RUN ["sh", "/build/packages.sh", "/build/cpu.sh"]

FROM base AS trainer-cpu
COPY --from=trainer-cpu-packages /image/ /
COPY --from=ours /image/ /
ENV PATH=/opt/torchyard/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1
USER 65532:65532
CMD ["python3"]
ARG VERSION
LABEL org.opencontainers.image.title="TorchYard trainer for CPUs" \
  org.opencontainers.image.description="PyTorch, transformers and the trainers of TorchYard, without what only GPUs use." \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION"

# `base`, not `runtime`: PyTorch's own packages bring the CUDA libraries, a second set would never be loaded. CUDA 13.0 asks
# for the oldest driver that runs them.
FROM ${BASE_IMAGE:-docker.io/nvidia/cuda:13.0.3-base-ubuntu24.04@sha256:7c7413a56200486f71f181cad9310f6fd31b6bb21816ade15fc9c1e1e927a5c1} AS cuda
RUN command -v python3 >/dev/null || { apt-get update && apt-get install --yes --no-install-recommends python3; } \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/* \
  && echo "torchyard:x:65532:65532:TorchYard:/tmp:/usr/sbin/nologin" >>/etc/passwd && echo "torchyard:x:65532:" >>/etc/group

FROM cuda AS cuda-build
COPY images/tools.sh images/build.lock build/ca.cr[t] /build/
RUN ["sh", "/build/tools.sh"]
ENV PATH=/build/tools/bin:$PATH PYTHONPATH=/build/tools
COPY images/packages.sh images/finish.sh /build/

FROM cuda-build AS cuda-ours
COPY images/ours.sh /build/
COPY pyproject.toml README.md /build/src/
COPY operator/ /build/src/operator/
COPY agent/ /build/src/agent/
COPY trainers/ /build/src/trainers/
COPY charts/ /build/src/charts/
COPY examples/ /build/src/examples/
COPY hack/wheel.py /build/src/hack/
RUN ["sh", "/build/ours.sh"]

FROM cuda-build AS trainer-packages
COPY images/trainer.lock /build/packages.lock
RUN ["sh", "/build/packages.sh"]

FROM cuda AS trainer
# torch.compile compiles with it, in the pod.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ python3-dev \
  && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
COPY --from=trainer-packages /image/ /
COPY --from=cuda-ours /image/ /
ENV PATH=/opt/torchyard/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONFAULTHANDLER=1 \
  TORCH_NCCL_ASYNC_ERROR_HANDLING=3 TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 \
  PYTORCH_ALLOC_CONF=expandable_segments:True NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
CMD ["python3"]
ARG VERSION
LABEL org.opencontainers.image.title="TorchYard trainer" \
  org.opencontainers.image.description="PyTorch with CUDA, transformers and the trainers of TorchYard." \
  org.opencontainers.image.licenses="Apache-2.0" \
  org.opencontainers.image.version="$VERSION"
