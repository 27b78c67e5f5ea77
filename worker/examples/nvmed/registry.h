// The controllers of a shard: its state, as the open transaction has it.
#ifndef WORKER_EXAMPLES_NVMED_REGISTRY_H_
#define WORKER_EXAMPLES_NVMED_REGISTRY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/state.h"

namespace baton::nvmed {

class Registry {
 public:
  // With as many places as fit a shard's state of so many bytes.
  explicit Registry(uint32_t state_bytes);

  // Empty: nobody has been here. kInvalidArgument: that is no registry, and why; it is empty then.
  absl::Status Load(absl::Span<const uint8_t> state, uint32_t version);
  // Valid until the next change.
  absl::Span<const uint8_t> Save();

  // nullptr: there is none with this id.
  ControllerState* Find(uint16_t id);
  // A new controller, with an id that none had lately. nullptr: all places are taken.
  ControllerState* Add();
  absl::Span<ControllerState> controllers() { return absl::MakeSpan(places_); }

  uint64_t namespaces_hash() const { return header_.namespaces_hash; }
  void set_namespaces_hash(uint64_t hash) { header_.namespaces_hash = hash; }

  // Call it after each change of a controller, so that the next transaction saves the registry.
  void Touch() { touched_ = true; }
  bool touched() const { return touched_; }
  void Saved() { touched_ = false; }

 private:
  RegistryHeader header_;
  std::vector<ControllerState> places_;
  std::vector<uint8_t> bytes_;
  bool touched_ = false;
};

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_REGISTRY_H_
