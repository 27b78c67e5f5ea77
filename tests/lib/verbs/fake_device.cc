#include "tests/lib/verbs/fake_device.h"

#include <algorithm>

#include "lib/arena/layout.h"

namespace baton::verbs::testing {

// ---------------------------------------------------------------- requests and completions

PostedRequest::PostedRequest(const SendRequest& request)
    : wr_id(request.wr_id),
      receive(false),
      opcode(request.opcode),
      immediate(request.immediate),
      inline_data(request.inline_data),
      sges(request.sges.begin(), request.sges.end()) {}

PostedRequest::PostedRequest(const ReceiveRequest& request)
    : wr_id(request.wr_id), receive(true), sges(request.sges.begin(), request.sges.end()) {}

Completion PostedRequest::Complete(uint32_t qp_number, CompletionStatus status) const {
  Completion completion;
  completion.wr_id = wr_id;
  completion.status = status;
  completion.opcode = receive ? CompletionOpcode::kReceive : CompletionOf(opcode);
  completion.qp_number = qp_number;
  return completion;
}

std::string PostedRequest::Gather() const {
  std::string bytes;
  for (const ScatterGather& sge : sges) {
    bytes.append(reinterpret_cast<const char*>(sge.address), sge.length);
  }
  return bytes;
}

size_t PostedRequest::Scatter(std::string_view bytes) const {
  for (const ScatterGather& sge : sges) {
    const size_t length = std::min<size_t>(sge.length, bytes.size());
    bytes.copy(reinterpret_cast<char*>(sge.address), length);
    bytes.remove_prefix(length);
  }
  return bytes.size();
}

size_t CompletionFifo::Copy(absl::Span<Completion> completions) const {
  const size_t count = std::min(completions.size(), ready_.size());
  std::copy_n(ready_.begin(), count, completions.begin());
  return count;
}

void CompletionFifo::Drop(size_t count) {
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<ptrdiff_t>(count));
}

bool CompletionFifo::Has(uint64_t wr_id) const {
  return std::any_of(ready_.begin(), ready_.end(),
                     [wr_id](const Completion& one) { return one.wr_id == wr_id; });
}

std::optional<uint64_t> CompletionFifo::Last(uint32_t queue_pair, bool receive) const {
  for (auto one = ready_.rbegin(); one != ready_.rend(); ++one) {
    const bool of_receive = arena::WrIdDirection(one->wr_id) == arena::Direction::kReceive;
    if (one->qp_number == queue_pair && of_receive == receive) return one->wr_id;
  }
  return std::nullopt;
}

absl::Status FakeQueuePair::SetError() {
  state_ = QueuePairState::kError;
  return absl::OkStatus();
}

// ---------------------------------------------------------------- device

class FakeDevice::Region final : public KeyedRegion {
 public:
  Region(FakeDevice* device, uint32_t key) : KeyedRegion(key), device_(device) {}
  ~Region() override { device_->regions_.erase(lkey()); }

 private:
  FakeDevice* const device_;
};

DeviceLimits FakeDevice::limits() const {
  DeviceLimits limits;
  limits.max_queue_pairs = limits.max_completion_queues = limits.max_memory_regions = 1 << 20;
  limits.max_completion_queue_entries = 1 << 24;
  limits.max_send_requests = limits.max_receive_requests = 1 << 16;
  limits.max_scatter_gather = 16;
  limits.max_private_data_connect = limits.max_private_data_accept =
      limits.max_private_data_reject = kMaxPrivateData;
  limits.max_initiator_depth = 16;
  limits.max_message_bytes = 1 << 30;
  limits.atomics = limits.send_with_invalidate = true;
  return limits;
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> FakeDevice::RegisterMemory(void* address,
                                                                         size_t length,
                                                                         uint32_t access) {
  regions_[++last_key_] = {reinterpret_cast<uint64_t>(address), length, access};
  return std::make_unique<Region>(this, last_key_);
}

bool FakeDevice::IsRegistered(const ScatterGather& sge) const {
  const auto region = regions_.find(sge.lkey);
  if (region == regions_.end()) return false;
  const Range& range = region->second;
  return (range.access & kLocalWrite) != 0 && sge.address >= range.address &&
         sge.address - range.address <= range.length &&
         sge.length <= range.length - (sge.address - range.address);
}

absl::StatusOr<std::unique_ptr<Listener>> FakeDevice::Listen(const Address& address, int) {
  auto listener = std::make_unique<FakeListener>(address);
  listener_ = listener.get();
  return listener;
}

bool FakeDevice::NextEvent(CmEvent* event) {
  if (events_.empty()) return false;
  *event = std::move(events_.front());
  events_.pop_front();
  return true;
}

bool FakeDevice::NextDeviceEvent(DeviceEvent* event) {
  if (device_events_.empty()) return false;
  *event = device_events_.front();
  device_events_.pop_front();
  return true;
}

void FakeDevice::Report(CmEventType type, ConnectionId* id) {
  CmEvent event;
  event.type = type;
  event.id = id;
  events_.push_back(std::move(event));
}

}  // namespace baton::verbs::testing
