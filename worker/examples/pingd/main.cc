// pingd-v1, pingd-v2: the server of `rping -c` and `rdma_client` as a worker of Baton.
#include "worker/examples/pingd/pingd_program.h"

int main(int argc, char** argv) { return baton::pingd::Main(PINGD_VERSION, argc, argv); }
