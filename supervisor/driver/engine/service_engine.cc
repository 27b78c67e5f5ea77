#include "supervisor/driver/engine/service_engine.h"

#include "absl/strings/str_cat.h"
#include "lib/driver/regions.h"

namespace baton::driver_process {

ServiceEngine::ServiceEngine(arena::Arena* arena, verbs::Device* device, EngineListener* listener)
    : arena_(arena), device_(device), listener_(listener) {
  if (device != nullptr) device_info_ = device->info();
}

absl::StatusOr<uint32_t> ServiceEngine::ReserveGrant(uint64_t offset, uint64_t length,
                                                     uint32_t access) {
  return driver::ReserveGrant(*arena_, *device_, objects(), offset, length, access);
}

absl::StatusOr<uint32_t> ServiceEngine::ReserveRegion(const driver::GrantRange& range) {
  return driver::ReserveRegion(objects(), range);
}

void ServiceEngine::RegisterGrant(uint32_t grant, GrantDone done) {
  done(driver::RegisterGrant(*arena_, device_, objects(), grant));
}

void ServiceEngine::RevokeGrant(uint32_t grant, GrantDone done) {
  done(driver::RevokeGrant(*arena_, objects(), grant));
}

void ServiceEngine::TellRefused(std::string_view why, uint64_t now_ns) {
  const auto told = refusals_.Tell(why, now_ns);
  if (told) listener_->OnEvent("connection_refused", *told, 0, -1, -1);
}

absl::Status ServiceEngine::TellDeviceEvent(const verbs::DeviceEvent& event, uint32_t connection) {
  device_info_ = device_->info();
  const DeviceEventText text = DescribeDeviceEvent(event, device_info_);
  const bool known = connection != driver::DriverObserver::kNoConnection;
  listener_->OnEvent(
      text.kind, known ? absl::StrCat("connection ", connection, ": ", text.message) : text.message,
      0, known ? static_cast<int>(arena_->connection(connection).shard) : -1,
      known ? static_cast<int>(connection) : -1);
  if (event.type != verbs::DeviceEventType::kDeviceLost) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("device ", device_info_.name, " is lost: ", event.text));
}

}  // namespace baton::driver_process
