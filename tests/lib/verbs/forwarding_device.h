// Tests use this in place of a device.
#ifndef TESTS_LIB_VERBS_FORWARDING_DEVICE_H_
#define TESTS_LIB_VERBS_FORWARDING_DEVICE_H_

#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::testing {

// A device that is another one: a test overrides what is to be different.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  DeviceLimits limits() const override { return inner_->limits(); }
  absl::Status NameMemory(void* address, size_t length, int memfd) override {
    return inner_->NameMemory(address, length, memfd);
  }
  void ForgetMemory(void* address) override { inner_->ForgetMemory(address); }
  absl::StatusOr<std::unique_ptr<MemoryRegion>> RegisterMemory(void* address, size_t length,
                                                               uint32_t access) override {
    return inner_->RegisterMemory(address, length, access);
  }
  absl::StatusOr<std::unique_ptr<CompletionQueue>> CreateCompletionQueue(
      uint32_t entries) override {
    return inner_->CreateCompletionQueue(entries);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(
      const QueuePairOptions& options) override {
    return inner_->CreateQueuePair(options);
  }
  absl::StatusOr<std::unique_ptr<SharedReceiveQueue>> CreateSharedReceiveQueue(
      uint32_t entries, uint32_t max_scatter_gather) override {
    return inner_->CreateSharedReceiveQueue(entries, max_scatter_gather);
  }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address, int backlog) override {
    return inner_->Listen(address, backlog);
  }
  absl::StatusOr<std::unique_ptr<ConnectionId>> Connect(
      const Address& address, QueuePair* queue_pair,
      const ConnectionParameters& parameters) override {
    return inner_->Connect(address, queue_pair, parameters);
  }
  bool has_time_wait() const override { return inner_->has_time_wait(); }
  bool NextEvent(CmEvent* event) override { return inner_->NextEvent(event); }
  void Progress() override { inner_->Progress(); }
  int event_fd() const override { return inner_->event_fd(); }
  absl::Status CheckForkable() const override { return inner_->CheckForkable(); }
  absl::Status AfterFork() override { return inner_->AfterFork(); }
  std::vector<int> ForkedDescriptors() const override { return inner_->ForkedDescriptors(); }

 protected:
  Device& inner() { return *inner_; }

 private:
  const std::unique_ptr<Device> inner_;
};

}  // namespace baton::verbs::testing

#endif  // TESTS_LIB_VERBS_FORWARDING_DEVICE_H_
