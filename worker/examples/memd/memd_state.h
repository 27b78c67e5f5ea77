// memd keeps this of a connection: its leases, and the notices that were counted.
#ifndef WORKER_EXAMPLES_MEMD_MEMD_STATE_H_
#define WORKER_EXAMPLES_MEMD_MEMD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/leases.h"
#include "worker/worker.h"

namespace baton::memd {

// The connection's state (Shard::SetState), format version 1: the state of its leases, then these.
// Little-endian.
inline constexpr uint32_t kStateVersion = 1;
inline constexpr uint32_t kStateMagic = 0x444d'454d;  // "MEMD"
struct StateHeader {
  uint32_t magic;
  uint32_t counts;   // NoticeCounts that follow: one for each lease that has notices
  uint64_t notices;  // that were taken of the connection
};
static_assert(offsetof(StateHeader, notices) == 8);
static_assert(sizeof(StateHeader) == 16);
struct NoticeCount {
  uint32_t lease;
  uint32_t reserved;  // 0
  uint64_t notices;   // at least 1
};
static_assert(offsetof(NoticeCount, notices) == 8);
static_assert(sizeof(NoticeCount) == 16);

// The most bytes of a state with so many leases.
constexpr uint32_t StateBytesFor(uint32_t leases) {
  return Leases::BytesFor(leases) + static_cast<uint32_t>(sizeof(StateHeader)) +
         leases * static_cast<uint32_t>(sizeof(NoticeCount));
}

// Loaded for each completion, and saved in its transaction.
class ConnectionState {
 public:
  // `most_leases`: from here on. kDataLoss: the connection's state is none of memd's.
  static absl::StatusOr<ConnectionState> Load(Connection& connection, uint32_t most_leases);

  // Stages the state.
  absl::Status Save(Connection& connection);

  Leases& leases() { return leases_; }
  const Leases& leases() const { return leases_; }
  uint64_t notices() const { return notices_; }
  uint64_t NoticesIn(uint32_t lease) const;
  // A notice in a lease that is gone counts as one that was taken.
  void CountNotice(uint32_t lease);

 private:
  explicit ConnectionState(const Leases& leases) : leases_(leases) {}

  Leases leases_;
  uint64_t notices_ = 0;
  std::map<uint32_t, uint64_t> counts_;  // by lease; those of leases that are gone are not saved
};

}  // namespace baton::memd

#endif  // WORKER_EXAMPLES_MEMD_MEMD_STATE_H_
