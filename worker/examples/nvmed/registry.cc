#include "worker/examples/nvmed/registry.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {
namespace {

bool HasEnd(const char (&text)[kNqnBytes]) {
  return std::memchr(text, '\0', sizeof(text)) != nullptr;
}

absl::Status RefuseController(size_t place, const char* field, uint64_t value) {
  return absl::InvalidArgumentError(
      absl::StrCat("the state's controller ", place, ": ", field, " ", value));
}

// Checks the fields that are indices or ends. Other wrong fields can harm only the controller's own
// host. Fields that depend on connections are checked with the connections.
absl::Status CheckController(const ControllerState& controller, size_t place) {
  if (controller.id > kMaxControllerId) return RefuseController(place, "id", controller.id);
  if (controller.granted_queues > kMaxIoQueues) {
    return RefuseController(place, "granted_queues", controller.granted_queues);
  }
  if (controller.held_count > kMaxHeldEvents) {
    return RefuseController(place, "held_count", controller.held_count);
  }
  if (!HasEnd(controller.host_nqn) || !HasEnd(controller.subsystem_nqn)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the state's controller ", place, ": an NQN without end"));
  }
  return absl::OkStatus();
}

absl::Status CheckControllers(absl::Span<const ControllerState> controllers) {
  std::vector<uint16_t> ids;
  for (size_t place = 0; place < controllers.size(); ++place) {
    if (controllers[place].id == 0) continue;
    BATON_RETURN_IF_ERROR(CheckController(controllers[place], place));
    ids.push_back(controllers[place].id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the state has controller id ", *twice, " twice"));
}

}  // namespace

Registry::Registry(uint32_t state_bytes) {
  if (state_bytes < sizeof(RegistryHeader)) return;
  // No more than there are ids.
  places_.resize(std::min<size_t>((state_bytes - sizeof(RegistryHeader)) / sizeof(ControllerState),
                                  kMaxControllerId));
}

absl::Status Registry::Load(absl::Span<const uint8_t> state, uint32_t version) {
  header_ = RegistryHeader();
  std::fill(places_.begin(), places_.end(), ControllerState());
  touched_ = false;
  if (state.empty()) return absl::OkStatus();
  if (version != kStateVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("state version ", version, ", not ", kStateVersion));
  }
  RegistryHeader header;
  if (state.size() >= sizeof(header)) std::memcpy(&header, state.data(), sizeof(header));
  if (state.size() != sizeof(header) + header.controllers * sizeof(ControllerState) ||
      header.controllers > places_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(state.size(), " bytes of state for ",
                                                   header.controllers, " controllers, of at most ",
                                                   places_.size()));
  }
  std::memcpy(places_.data(), state.data() + sizeof(header),
              header.controllers * sizeof(ControllerState));
  absl::Status status = CheckControllers(places_);
  if (status.ok()) {
    header_ = header;
  } else {
    std::fill(places_.begin(), places_.end(), ControllerState());
  }
  return status;
}

absl::Span<const uint8_t> Registry::Save() {
  // Saves up to the last controller. Free places after it are not copied.
  uint32_t count = static_cast<uint32_t>(places_.size());
  while (count > 0 && places_[count - 1].id == 0) --count;
  header_.controllers = count;
  bytes_.resize(sizeof(header_) + places_.size() * sizeof(ControllerState));
  std::memcpy(bytes_.data(), &header_, sizeof(header_));
  std::memcpy(bytes_.data() + sizeof(header_), places_.data(), count * sizeof(ControllerState));
  return {bytes_.data(), sizeof(header_) + count * sizeof(ControllerState)};
}

ControllerState* Registry::Find(uint16_t id) {
  if (id == 0) return nullptr;
  for (ControllerState& controller : places_) {
    if (controller.id == id) return &controller;
  }
  return nullptr;
}

ControllerState* Registry::Add() {
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [](const ControllerState& one) { return one.id == 0; });
  if (place == places_.end()) return nullptr;
  do {
    header_.last_id = header_.last_id >= kMaxControllerId ? 1 : header_.last_id + 1;
  } while (Find(header_.last_id) != nullptr);
  *place = ControllerState();
  place->id = header_.last_id;
  Touch();
  return &*place;
}

}  // namespace baton::nvmed
