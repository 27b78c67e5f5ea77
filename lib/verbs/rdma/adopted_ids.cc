#include "lib/verbs/rdma/adopted_ids.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/base/errno_status.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/rdma/cm_command.h"
#include "lib/verbs/rdma/cm_event_number.h"
#include "lib/verbs/socket_address.h"

namespace baton::verbs::rdma {
namespace {

// So many numbers in a row that nobody has are the end: one above them would be left from a time
// when the machine had as many ids, and more, at once.
constexpr uint32_t kLongestGap = 65'536;

// To ask the kernel something that it cannot answer at the moment.
constexpr int kAttempts = 10;

int MigrateOne(int file, int other_file, uint32_t number) {
  rdma_ucm_migrate_id command = {};
  command.id = number;
  command.fd = static_cast<uint32_t>(other_file);
  rdma_ucm_migrate_resp answer = {};
  return AskCommand(file, RDMA_USER_CM_CMD_MIGRATE_ID, command, &answer);
}

class KernelIds final : public AdoptedIds {
 public:
  explicit KernelIds(FileDescriptor file) : file_(std::move(file)) {}
  int fd() const override { return file_.get(); }
  absl::StatusOr<std::vector<AdoptedId>> TakeFrom(int other_file) override;
  std::optional<Event> NextEvent() override;
  std::optional<bool> IsConnected(uint32_t number) const override;
  void Disconnect(uint32_t number) override;
  void Destroy(uint32_t number) override;

 private:
  std::optional<AdoptedId> Query(uint32_t number) const;
  std::vector<uint32_t> Migrate(int other_file);
  void CloseListeners(int other_file, std::vector<uint32_t>* numbers);

  const FileDescriptor file_;
};

absl::StatusOr<std::vector<AdoptedId>> KernelIds::TakeFrom(int other_file) {
  // If it is no such file, or access is denied, any number returns the error.
  const int error = MigrateOne(file_.get(), other_file, ~0u);
  if (error != ENOENT) return ErrnoStatus(error, "taking over the ids of an rdma_cm file");
  std::vector<uint32_t> numbers = Migrate(other_file);
  CloseListeners(other_file, &numbers);
  std::vector<AdoptedId> connections;
  for (const uint32_t number : numbers) {
    if (const std::optional<AdoptedId> id = Query(number)) connections.push_back(*id);
  }
  return connections;
}

std::vector<uint32_t> KernelIds::Migrate(int other_file) {
  std::vector<uint32_t> numbers;
  for (uint32_t number = 0, gap = 0; gap < kLongestGap; ++number, ++gap) {
    const int error = MigrateOne(file_.get(), other_file, number);
    if (error == 0) numbers.push_back(number);
    if (error != ENOENT) gap = 0;
  }
  return numbers;
}

// The kernel has made an id for each request that nobody took yet. They end with their listener,
// but for those that are told of here: an id that is destroyed while the kernel still has the
// request's event would leave that event with what is no more.
void KernelIds::CloseListeners(int other_file, std::vector<uint32_t>* numbers) {
  std::vector<uint32_t> listeners;
  for (const uint32_t number : *numbers) {
    const std::optional<AdoptedId> id = Query(number);
    if (id && id->peer.host.empty()) listeners.push_back(number);
  }
  // Anything else is told again in a moment, by IsConnected.
  rdma_ucm_event_resp event = {};
  while (AskCommand(file_.get(), RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, &event) == 0) {
    if (CmEventNumber(event.event) != CmEventNumber::kConnectRequest) continue;
    (void)MigrateOne(file_.get(), other_file, event.id);  // it came behind our back
    std::erase(*numbers, event.id);
    Destroy(event.id);
  }
  for (const uint32_t number : listeners) {
    std::erase(*numbers, number);
    Destroy(number);
  }
}

std::optional<AdoptedId> KernelIds::Query(uint32_t number) const {
  rdma_ucm_query command = {};
  command.id = number;
  command.option = RDMA_USER_CM_QUERY_ADDR;
  rdma_ucm_query_addr_resp answer = {};
  if (AskCommand(file_.get(), RDMA_USER_CM_CMD_QUERY, command, &answer) != 0) return std::nullopt;
  AdoptedId id;
  id.number = number;
  id.local = FromSocketAddress(reinterpret_cast<const sockaddr&>(answer.src_addr));
  id.peer = FromSocketAddress(reinterpret_cast<const sockaddr&>(answer.dst_addr));
  // A listener has the family of its own address, and no port.
  if (id.peer.port == 0) id.peer.host.clear();
  return id;
}

std::optional<AdoptedIds::Event> KernelIds::NextEvent() {
  rdma_ucm_event_resp event = {};
  while (AskCommand(file_.get(), RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{}, &event) == 0) {
    switch (CmEventNumber(event.event)) {
      case CmEventNumber::kDisconnected:
      case CmEventNumber::kRejected:  // by who had accepted, and went before it was answered
      case CmEventNumber::kConnectError:
      case CmEventNumber::kUnreachable:
        return Event{event.id, AdoptedEvent::kDisconnected};
      case CmEventNumber::kDeviceRemoval:
        return Event{event.id, AdoptedEvent::kDeviceRemoved};
      default:
        break;
    }
  }
  return std::nullopt;
}

// The kernel has the attributes of a queue pair that is ready to send as long as its connection is
// neither over nor being ended (cm_init_qp_rts_attr): else it says EINVAL. Anything else is no
// answer.
std::optional<bool> KernelIds::IsConnected(uint32_t number) const {
  rdma_ucm_init_qp_attr command = {};
  command.id = number;
  command.qp_state = IBV_QPS_RTS;
  ib_uverbs_qp_attr answer = {};
  for (int i = 0; i < kAttempts; ++i) {
    const int error = AskCommand(file_.get(), RDMA_USER_CM_CMD_INIT_QP_ATTR, command, &answer);
    if (error == 0 || error == EINVAL) return error == 0;
  }
  return std::nullopt;
}

void KernelIds::Disconnect(uint32_t number) {
  rdma_ucm_disconnect command = {};
  command.id = number;
  (void)GiveCommand(file_.get(), RDMA_USER_CM_CMD_DISCONNECT, command);
}

void KernelIds::Destroy(uint32_t number) {
  rdma_ucm_destroy_id command = {};
  command.id = number;
  rdma_ucm_destroy_id_resp answer = {};
  (void)AskCommand(file_.get(), RDMA_USER_CM_CMD_DESTROY_ID, command, &answer);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdoptedIds>> OpenAdoptedIds() {
  FileDescriptor file(open(kCmDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!file) return ErrnoStatus(errno, kCmDevice);
  return std::make_unique<KernelIds>(std::move(file));
}

}  // namespace baton::verbs::rdma
