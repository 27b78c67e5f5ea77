// filed-v1, filed-v2: serves the files below a directory, as a worker of Baton.
#include "worker/examples/filed/filed_program.h"

int main(int argc, char** argv) { return baton::filed::Main(FILED_VERSION, argc, argv); }
