# What no run on CPUs loads: kernels and compilers for GPUs. PyTorch from the package index is linked with the rest of CUDA and
# does not start without it.
set -eu
cd /opt/torchyard/lib/python3.*/site-packages
uv pip uninstall --quiet --python /opt/torchyard/bin/python triton
rm -rf \
  nvidia/cudnn/lib/libcudnn_*.so.* \
  nvidia/cu13/lib/libcusolverMg.so.* \
  nvidia/cu13/lib/libnvperf_*.so \
  nvidia/nvshmem/lib/*.bc \
  nvidia/*/include \
  torch/include \
  torch/test
find nvidia torch -name '*.a' -delete
