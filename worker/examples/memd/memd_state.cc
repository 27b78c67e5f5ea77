#include "worker/examples/memd/memd_state.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/status.h"

namespace baton::memd {
namespace {

absl::Status Damaged(const Connection& connection) {
  return absl::DataLossError(absl::StrCat("connection ", connection.index(), ": its state of ",
                                          connection.state().size(),
                                          " bytes is not memd's of version ", kStateVersion));
}

// Takes a T from the beginning of `bytes`; false: they are too few.
template <typename T>
bool TakeOff(absl::Span<const uint8_t>* bytes, T* taken) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(taken, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return true;
}

}  // namespace

absl::StatusOr<ConnectionState> ConnectionState::Load(Connection& connection,
                                                      uint32_t most_leases) {
  absl::Span<const uint8_t> rest = connection.state();
  BATON_ASSIGN_OR_RETURN(const Leases leases, Leases::Load(connection, rest, most_leases));
  ConnectionState state(leases);
  if (rest.empty()) return state;
  StateHeader header = {};
  if (rest.size() < leases.state().size()) return Damaged(connection);
  rest.remove_prefix(leases.state().size());
  if (connection.state_version() != kStateVersion || !TakeOff(&rest, &header) ||
      header.magic != kStateMagic || header.counts > Leases::kMostLeases ||
      rest.size() != header.counts * sizeof(NoticeCount)) {
    return Damaged(connection);
  }
  state.notices_ = header.notices;
  for (NoticeCount count = {}; TakeOff(&rest, &count);) {
    state.counts_[count.lease] = count.notices;
  }
  return state;
}

absl::Status ConnectionState::Save(Connection& connection) {
  std::array<uint8_t, StateBytesFor(Leases::kMostLeases)> bytes;
  size_t length = 0;
  const auto add = [&](const void* from, size_t count) {
    std::memcpy(bytes.data() + length, from, count);
    length += count;
  };
  add(leases_.state().data(), leases_.state().size());
  StateHeader header = {kStateMagic, 0, notices_};
  const size_t place = length;
  add(&header, sizeof(header));
  for (const Lease& lease : leases_.all()) {
    const NoticeCount count = {lease.id, 0, NoticesIn(lease.id)};
    if (count.notices == 0) continue;
    add(&count, sizeof(count));
    ++header.counts;
  }
  std::memcpy(bytes.data() + place, &header, sizeof(header));
  return connection.shard().SetState(connection, {bytes.data(), length}, kStateVersion);
}

uint64_t ConnectionState::NoticesIn(uint32_t lease) const {
  const auto found = counts_.find(lease);
  return found == counts_.end() ? 0 : found->second;
}

void ConnectionState::CountNotice(uint32_t lease) {
  ++notices_;
  if (leases_.Find(lease) != nullptr) ++counts_[lease];
}

}  // namespace baton::memd
