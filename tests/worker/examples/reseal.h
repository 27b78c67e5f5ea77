// For tests that change a reply of the ledger.
#ifndef TESTS_WORKER_EXAMPLES_RESEAL_H_
#define TESTS_WORKER_EXAMPLES_RESEAL_H_

#include <cstdint>

#include "worker/examples/ledger/ledger_account.h"

namespace baton::ledger {

// The reply's check is right again.
inline void Reseal(Reply* reply) {
  reply->check = Checksum({reinterpret_cast<const uint8_t*>(reply), sizeof(*reply)});
}

}  // namespace baton::ledger

#endif  // TESTS_WORKER_EXAMPLES_RESEAL_H_
