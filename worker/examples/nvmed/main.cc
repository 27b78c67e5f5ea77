// nvmed-v1, nvmed-v2: an NVMe over Fabrics target on RDMA as a worker of Baton.
#include "worker/examples/nvmed/nvmed_program.h"

int main(int argc, char** argv) { return baton::nvmed::Main(NVMED_VERSION, argc, argv); }
