// Chapter 3: keeps a text of any length for each peer, in the heap of its shard.
//   put TEXT    the peer's text becomes TEXT; the answer is the text before
//   add TEXT    TEXT is added to its end; the answer is the text before
//   list        the texts of all peers of the shard
//   audit       what is allocated, and how much of it is a text
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/guide/reply_service.h"
#include "worker/heap.h"

namespace baton::guide {
namespace {

constexpr uint32_t kFormat = 1;      // of a connection's state: a Buffer
constexpr size_t kMostBytes = 4096;  // of an answer: `line` has room for so many

Buffer ValueOf(const Connection& connection) {
  Buffer value;  // none yet: its length is 0
  const absl::Span<const uint8_t> state = connection.state();
  if (state.size() == sizeof(value)) std::memcpy(&value, state.data(), sizeof(value));
  return value;
}

class Values final : public ReplyService {
 public:
  absl::Status Check(const Capacity& capacity) override {
    if (capacity.shard_heap_bytes > 0) return absl::OkStatus();
    return absl::FailedPreconditionError("values needs a service with shard_heap_bytes");
  }

  // Frees what no state knows.
  absl::Status OnAdopt(Shard& shard) override {
    std::vector<Buffer> unknown;
    const std::set<uint64_t> known = Offsets(shard);
    BATON_RETURN_IF_ERROR(shard.heap().ForEachAllocated([&](const Buffer& buffer, bool) {
      if (!known.contains(buffer.offset)) unknown.push_back(buffer);
    }));
    for (const Buffer& buffer : unknown) {
      if (!shard.heap().Free(buffer).ok()) break;  // no room: the next owner frees the rest
    }
    return absl::OkStatus();
  }

  void OnCompletion(Shard& shard, const Completion& done) override {
    if (done.kind != Completion::Kind::kDisconnected) {
      return ReplyService::OnCompletion(shard, done);
    }
    const Buffer value = ValueOf(*done.connection);
    // If it fails, the next owner frees it.
    if (value.length > 0) shard.heap().Free(value).IgnoreError();
  }

 private:
  absl::Status Answer(Shard& shard, Connection& connection, const std::string& message,
                      uint64_t tag) override {
    if (message == "list") return SendList(shard, connection, tag);
    const bool adds = message.starts_with("add ");
    if (!adds && !message.starts_with("put ")) {
      return ReplyService::Answer(shard, connection, message, tag);
    }
    return Replace(shard, connection, adds, message.substr(4), tag);
  }

  static absl::Status Replace(Shard& shard, Connection& connection, bool adds,
                              const std::string& text, uint64_t tag) {
    Heap& heap = shard.heap();
    const Buffer before = ValueOf(connection);
    const uint32_t stays = adds ? before.length : 0;
    if (stays + text.size() > kMostBytes) return absl::InvalidArgumentError("too long a text");
    BATON_ASSIGN_OR_RETURN(const Buffer value, heap.Allocate(stays + text.size()));
    std::copy_n(heap.At(before), stays, heap.At(value));
    std::copy(text.begin(), text.end(), heap.At(value) + stays);
    const auto* const state = reinterpret_cast<const uint8_t*>(&value);
    BATON_RETURN_IF_ERROR(shard.SetState(connection, {state, sizeof(value)}, kFormat));
    if (before.length == 0) return SendText(shard, connection, "nothing", tag);
    BATON_RETURN_IF_ERROR(heap.Free(before));
    return shard.Send(connection, {.buffers = {&before, 1}, .tag = tag});
  }

  // It looks at each connection slot of the service. A busy service does so for few messages.
  static absl::Status SendList(Shard& shard, Connection& connection, uint64_t tag) try {
    HeapResource scratch(&shard);
    std::pmr::vector<uint8_t> list(&scratch);
    for (const Connection* one : shard.connections()) {
      const Buffer value = ValueOf(*one);
      const uint8_t* const text = shard.heap().At(value);
      list.insert(list.end(), text, text + value.length);
      list.push_back(' ');
    }
    const size_t length = std::min(list.size(), kMostBytes);
    const Buffer bytes = shard.heap().BufferAt(list.data(), static_cast<uint32_t>(length));
    return shard.Send(connection, {.buffers = {&bytes, 1}, .tag = tag});
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the heap has no room for the list");
  }

  absl::StatusOr<std::string> Reply(Shard& shard, Connection&,
                                    const std::string& message) override {
    if (message != "audit") return absl::InvalidArgumentError("neither put, add, list nor audit");
    const std::set<uint64_t> known = Offsets(shard);
    uint64_t allocated = 0, texts = 0;
    BATON_RETURN_IF_ERROR(shard.heap().ForEachAllocated([&](const Buffer& buffer, bool) {
      ++allocated;
      texts += known.count(buffer.offset);
    }));
    BATON_ASSIGN_OR_RETURN(const Heap::Statistics heap, shard.heap().statistics());
    return absl::StrCat(allocated, " allocated, ", texts, " of ", known.size(), " texts; kept ",
                        heap.kept, " held ", heap.held, " free ", heap.free, " of ", heap.bytes);
  }

  // Returns where the texts of all connections are.
  static std::set<uint64_t> Offsets(Shard& shard) {
    std::set<uint64_t> offsets;
    for (const Connection* connection : shard.connections()) {
      const Buffer value = ValueOf(*connection);
      if (value.length > 0) offsets.insert(value.offset);
    }
    return offsets;
  }
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  baton::guide::Values values;
  return baton::guide::Serve(values,
                             {.service = "counter",
                              .reads_state_version_min = 1,
                              .reads_state_version_max = 1,
                              .writes_state_version = 1,
                              .commit_mode = baton::CommitMode::kAfterEachCompletion},
                             argc, argv);
}
