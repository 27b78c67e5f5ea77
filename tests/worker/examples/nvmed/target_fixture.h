// A target in memory for tests: subsystem `one` for every host, `two` for kHost alone.
#ifndef TESTS_WORKER_EXAMPLES_NVMED_TARGET_FIXTURE_H_
#define TESTS_WORKER_EXAMPLES_NVMED_TARGET_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "worker/examples/nvmed/connect.h"
#include "worker/examples/nvmed/controller.h"
#include "worker/examples/nvmed/target.h"

namespace baton::nvmed {

inline constexpr char kOne[] = "nqn.2014-08.org.example:one";
inline constexpr char kTwo[] = "nqn.2014-08.org.example:two";
inline constexpr char kHost[] = "nqn.2014-08.org.example:host";
inline constexpr char kOtherHost[] = "nqn.2014-08.org.example:other-host";
inline constexpr char kTargetConfig[] = R"(
  subsystems {
    nqn: 'nqn.2014-08.org.example:one' serial: '1'
    namespaces { id: 7 memory { bytes: 8192 } }
    namespaces { id: 3 block_bytes: 4096 memory { bytes: 12288 } }
  }
  subsystems {
    nqn: 'nqn.2014-08.org.example:two' serial: '2' hosts: 'nqn.2014-08.org.example:host'
    namespaces { id: 1 memory { bytes: 4096 } }
  })";

template <typename View>
SubmissionEntry EntryOf(const View& view) {
  static_assert(sizeof(View) == sizeof(SubmissionEntry));
  SubmissionEntry command;
  std::memcpy(&command, &view, sizeof(command));
  return command;
}

template <typename View>
View ViewOfOpcode(AdminOpcode opcode) {
  SubmissionEntry command = {};
  command.opcode = static_cast<uint8_t>(opcode);
  return ViewOf<View>(command);
}

class TargetFixture : public testing::Test {
 protected:
  static constexpr uint32_t kPlaces = 4;

  TargetFixture() : registry_(sizeof(RegistryHeader) + kPlaces * sizeof(ControllerState)) {
    target_ = Open(kTargetConfig).value();
    options_.queue_entries = 32;
    options_.io_queues = 8;
    options_.max_transfer_bytes = 131072;
    options_.in_capsule_bytes = 4096;
    options_.firmware = "v1";
    options_.address = "10.0.0.1";
    options_.port = 4420;
  }

  // A target of this configuration, in the buffers.
  absl::StatusOr<Target> Open(const std::string& text) {
    const TargetConfig config = ParseConfiguration(text, "config").value();
    Capacity capacity;
    capacity.connections = 2;
    capacity.send_queue_depth = 128;
    capacity.receive_queue_depth = 64;
    const BufferPlan plan = BufferPlan::Make(config, capacity, buffers_.size()).value();
    return Target::Open(config, plan, absl::MakeSpan(buffers_));
  }

  // A request that succeeds, of an admin queue or, once there is a controller, of an I/O queue.
  static ConnectRequest Request(uint16_t queue, uint16_t controller = kDynamicController,
                                std::string_view subsystem = kOne, std::string_view host = kHost) {
    ConnectRequest request = {};
    request.command.qid = queue;
    request.command.sqsize = 31;
    request.command.kato = 5000;
    request.data.cntlid = controller;
    std::memcpy(request.data.subnqn, subsystem.data(), subsystem.size());
    std::memcpy(request.data.hostnqn, host.data(), host.size());
    std::memset(request.data.hostid, 0xab, sizeof(request.data.hostid));
    request.queue_id = queue;
    request.entries = 32;
    request.connection = 17;
    request.generation = 18;
    return request;
  }
  Answer Connect(const ConnectRequest& request) {
    connected_ = nullptr;
    return nvmed::Connect(request, options_, *target_, registry_, &connected_);
  }
  // A controller, enabled unless said otherwise.
  ControllerState& Add(std::string_view subsystem = kOne, std::string_view host = kHost,
                       bool enable = true) {
    EXPECT_EQ(Connect(Request(0, kDynamicController, subsystem, host)).status,
              StatusCode::kSuccess);
    ControllerState& state = *connected_;
    if (enable) {
      EXPECT_EQ(Set(state, kEnable).status, StatusCode::kSuccess);
    }
    return state;
  }
  Controller View(ControllerState& state) {
    return Controller(state, options_, *target_, registry_);
  }

  // CC: enabled, with entries of 64 and 16 bytes.
  static constexpr uint32_t kEnable = 0x00460001;
  Answer Set(ControllerState& state, uint64_t value, uint32_t property = kPropertyCc,
             uint8_t attributes = kProperty4Bytes) {
    auto command = ViewOfOpcode<PropertyCommand>(AdminOpcode::kFabrics);
    command.attrib = attributes;
    command.ofst = property;
    command.value = value;
    return View(state).SetProperty(EntryOf(command));
  }
  Answer Get(ControllerState& state, uint32_t property, uint8_t attributes = kProperty4Bytes) {
    auto command = ViewOfOpcode<PropertyCommand>(AdminOpcode::kFabrics);
    command.attrib = attributes;
    command.ofst = property;
    return View(state).GetProperty(EntryOf(command));
  }

  // The data are of exactly as many bytes as the command moves, as a sanitizer sees.
  template <typename Command>
  Answer Execute(ControllerState& state, const Command& command, uint16_t slot = 0) {
    const SubmissionEntry entry = EntryOf(command);
    const bool returns = DirectionOf(entry) == DataDirection::kToHost;
    data_.assign(returns ? DataLength(entry, true, 0).value_or(0) : 0, 0xee);
    data_.shrink_to_fit();
    return View(state).Execute(entry, slot, totals_, absl::MakeSpan(data_));
  }
  // What came back, as a structure.
  template <typename T>
  T Returned() const {
    EXPECT_GE(data_.size(), sizeof(T));
    T value = {};
    std::memcpy(&value, data_.data(), std::min(data_.size(), sizeof(T)));
    return value;
  }

  std::vector<uint8_t> buffers_ = std::vector<uint8_t>(size_t{16} << 20);
  std::optional<Target> target_;
  Registry registry_;
  ControllerOptions options_;
  Totals totals_;
  ControllerState* connected_ = nullptr;
  std::vector<uint8_t> data_;
};

}  // namespace baton::nvmed

#endif  // TESTS_WORKER_EXAMPLES_NVMED_TARGET_FIXTURE_H_
