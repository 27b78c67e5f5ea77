// The controllers of a shard, which are its state, with the changes of the open transaction.
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
  // Has as many places as fit in a shard's state of `state_bytes`.
  explicit Registry(uint32_t state_bytes);

  // An empty `state` is that of a new shard. kInvalidArgument: `state` is no registry; the message
  // says why, and the registry is then empty.
  absl::Status Load(absl::Span<const uint8_t> state, uint32_t version);
  // The result is valid until the next change.
  absl::Span<const uint8_t> Save();

  // Returns nullptr if no controller has this id.
  ControllerState* Find(uint16_t id);
  // Adds a controller, with an id that none had lately. Returns nullptr if all places are taken.
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
