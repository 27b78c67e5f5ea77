// ledger-state: prints an account of the ledger, a connection's state, for `baton inspect --state`
// (`state_decoder` in the service's configuration).
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "worker/examples/ledger/ledger_account.h"

int main() {
  const char* const kind = std::getenv("BATON_STATE_KIND");
  if (kind == nullptr || std::string(kind) != "connection") {
    std::cerr << "the ledger keeps accounts, one for each connection\n";
    return 1;
  }
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(std::cin)),
                                   std::istreambuf_iterator<char>());
  // All formats have the same bytes.
  const auto account =
      baton::ledger::LedgerAccount::Load(bytes, baton::ledger::kAccountStateVersion);
  if (!account.ok()) {
    std::cerr << account.status().message() << '\n';
    return 1;
  }
  if (account->client() == 0) {
    std::cout << "no request yet\n";
  } else {
    std::cout << "client " << account->client() << ", " << account->sequence()
              << " requests, total " << account->total() << '\n';
  }
}
