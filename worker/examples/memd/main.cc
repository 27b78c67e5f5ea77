// memd-v1, memd-v2: remote memory with leases, as a worker of Baton.
#include "worker/examples/memd/memd_program.h"

int main(int argc, char** argv) { return baton::memd::Main(MEMD_VERSION, argc, argv); }
