#ifndef LIB_NIC_CONTEXT_H_
#define LIB_NIC_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/file_descriptor.h"
#include "lib/nic/call.h"
#include "lib/nic/control_format.h"
#include "lib/nic/host.h"
#include "lib/nic/mapped_file.h"
#include "lib/nic/objects.h"
#include "lib/nic/queue_pair.h"
#include "lib/nic/registers.h"

namespace baton::nic {

// The objects of one client's file. They end with it.
class Context final : public ClientFile {
 public:
  // `host` outlives it.
  Context(Owner owner, const Host* host) : owner_(owner), host_(host), registers_(owner, host) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() override;

  absl::StatusOr<uint32_t> Execute(Call* call) override;

  // Queues an event for NEXT_DEVICE_EVENT, unless one of the type is queued for the object.
  void Tell(verbs::DeviceEventType type, uint32_t number);

  Registers& registers() { return registers_; }

 private:
  using Value = absl::StatusOr<uint32_t>;

  Value AddFile(const control::File& message, Call* call);
  Value AddRegion(const control::Region& message, Call* call);
  Value AddRegister(const control::Register& message, Call* call);
  Value AddChannel(const control::Channel& message, Call* call);
  Value AddCompletionQueue(const control::CompletionQueue& message, Call* call);
  Value AddQueuePair(const control::QueuePair& message, Call* call);
  Value AddSharedReceiveQueue(const control::SharedReceiveQueue& message, Call* call);
  absl::Status ArmLimit(const control::ArmLimit& message, Call* call);
  Value NextDeviceEvent(const control::NextDeviceEvent& message, Call* call);
  absl::Status Modify(const control::Modify& message, Call* call);
  Value Query(const control::Query& message, Call* call);
  absl::Status Destroy(const control::Destroy& message, Call* call);

  absl::Status CheckShare(absl::string_view what, size_t ours, size_t all, size_t limit) const;
  void ForgetEventsOf(uint32_t number);
  absl::Status DestroyRegion(uint32_t number);
  absl::Status DestroyRegister(uint32_t number);
  absl::Status DestroyCompletionQueue(uint32_t number);
  absl::Status DestroyQueuePair(uint32_t number);
  absl::Status DestroySharedReceiveQueue(uint32_t number);
  absl::Status FindReceives(const control::QueuePair& message, QueuePairParts* parts) const;

  absl::StatusOr<uint8_t*> Find(const control::Place& place, uint64_t bytes, uint64_t alignment,
                                absl::string_view what, std::shared_ptr<MappedFile>* file) const;
  absl::StatusOr<QueuePair*> FindOurs(uint32_t qp_number) const;
  OwnedCompletionQueue* FindQueue(uint32_t number) const;
  OwnedSharedReceiveQueue* FindShared(uint32_t number) const;

  struct Event {
    verbs::DeviceEventType type;
    uint32_t number;
    bool given = false;  // to the client, which has not said that it is handled
  };

  const Owner owner_;
  const Host* const host_;
  uint32_t last_number_ = 0;  // of files, registers and channels
  absl::flat_hash_map<uint32_t, std::shared_ptr<MappedFile>> files_;
  std::vector<std::weak_ptr<MappedFile>> mapped_;  // at most kMaxFiles
  // How many of these objects are this file's.
  size_t regions_ = 0;
  size_t completion_queues_ = 0;
  size_t queue_pairs_ = 0;
  size_t shared_receive_queues_ = 0;
  Registers registers_;
  absl::flat_hash_map<uint32_t, std::shared_ptr<FileDescriptor>> channels_;
  std::deque<Event> events_;
  FileDescriptor event_channel_;
};

}  // namespace baton::nic

#endif  // LIB_NIC_CONTEXT_H_
