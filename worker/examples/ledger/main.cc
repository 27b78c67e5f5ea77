// ledger-v1, ledger-v2: the ledger as a worker of Baton.
#include <string>

#include "worker/examples/ledger/ledger_program.h"

int main(int argc, char** argv) {
  baton::ledger::LedgerProgram program("ledger-v" + std::to_string(LEDGER_VERSION), LEDGER_VERSION);
  return program.Main(argc, argv);
}
