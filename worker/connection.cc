#include <algorithm>
#include <cstring>

#include "lib/arena/atomic_access.h"
#include "worker/worker_impl.h"

namespace baton {
bool Connection::established() const {
  const arena::ConnectionRecord& record = shard_->impl_->arena().connection(index_);
  return arena::LoadAcquire(record.state) ==
         static_cast<uint32_t>(arena::ConnectionState::kEstablished);
}

std::string_view Connection::peer_address() const {
  const arena::ConnectionRecord& record = shard_->impl_->arena().connection(index_);
  return {record.peer_address, strnlen(record.peer_address, sizeof(record.peer_address))};
}

// Another native worker can write the record, so the length is limited to the field's.
std::string_view Connection::private_data() const {
  const arena::ConnectionRecord& record = shard_->impl_->arena().connection(index_);
  return {reinterpret_cast<const char*>(record.private_data),
          std::min(arena::LoadRelaxed(record.private_data_length), arena::kPrivateDataBytes)};
}

absl::Span<const uint8_t> Connection::state() const {
  return {shard_->impl_->arena().connection_state(index_, state_slot_), state_length_};
}

uint32_t Connection::state_version() const { return state_version_; }

uint32_t Connection::send_room() const {
  return RoomOf(send_staged_, send_completed_, send_acknowledged_,
                shard_->impl_->arena().shape().send_queue_depth);
}

uint32_t Connection::receive_room() const {
  return RoomOf(receive_staged_, receive_completed_, receive_acknowledged_,
                arena::ReceiveDepth(shard_->impl_->arena().shape()));
}

}  // namespace baton
