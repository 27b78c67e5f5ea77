// A command capsule as it was received: what it commands, and where its data are. Pure functions of
// the bytes and of the limits that the host was told; every byte is the host's, and any bytes are
// defined.
#ifndef WORKER_EXAMPLES_NVMED_CAPSULE_H_
#define WORKER_EXAMPLES_NVMED_CAPSULE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/examples/nvmed/nvme_spec.h"

namespace baton::nvmed {

// The limits of the capsules that a queue accepts.
struct CapsuleLimits {
  bool admin_queue = false;
  // After the 64 bytes of the command: IOCCSZ * 16 - 64, and 0 of an admin queue.
  uint32_t in_capsule_bytes = 0;
  uint32_t max_transfer_bytes = 0;  // by one command, MDTS; also what one data pointer may name
};

// Where the data of a command are, or go to.
struct DataPointer {
  enum class Kind : uint8_t {
    kNone,       // nowhere, `length` is 0
    kInCapsule,  // [offset, offset + length) of the capsule, all of it received
    kKeyed,      // `length` bytes of the host's memory: to be READ, or WRITten
  };
  Kind kind = Kind::kNone;
  bool invalidate_key = false;  // kKeyed: the response is a SEND that invalidates `key`
  uint32_t length = 0;          // at most max_transfer_bytes
  uint32_t offset = 0;          // kInCapsule: from the capsule's first byte, 64 at least
  uint32_t key = 0;             // kKeyed
  uint64_t address = 0;         // kKeyed, the host's
};

struct Capsule {
  SubmissionEntry command = {};
  // kSuccess, or why the command is to be completed without being executed, "do not retry" set.
  // `data` is kNone then.
  StatusCode status = StatusCode::kSuccess;
  DataPointer data;
};

// kInvalidArgument when there is no command in it that could be completed: the connection is at its
// end. `bytes` may change meanwhile: the command is copied once, and only the copy is looked at.
// The data pointer of a command that moves no data, or that DataLength does not know, is not looked
// at: a controller refuses the latter.
absl::StatusOr<Capsule> ParseCapsule(absl::Span<const uint8_t> bytes, const CapsuleLimits& limits);

// Encoded in the two low bits of the opcode, or of FCTYPE for Fabrics commands.
enum class DataDirection : uint8_t {
  kNone = 0,
  kToController = 1,
  kToHost = 2,
  kBoth = 3,  // no command that exists
};
DataDirection DirectionOf(const SubmissionEntry& command);

// The bytes that a command moves: what its data pointer has to name at least, and all that is moved
// if it names more. nullopt of a command (or of a feature of Get and Set Features) that is unknown
// here. `block_shift`: of the namespace, below 32; nothing else than Read, Write and Compare asks
// for it.
std::optional<uint64_t> DataLength(const SubmissionEntry& command, bool admin_queue,
                                   uint8_t block_shift);

// kSuccess when `length` bytes (DataLength's) can be moved; otherwise what the command is to be
// completed with, "do not retry" set: kInvalidField when they exceed the limit,
// kDataSglLengthInvalid when the data pointer names fewer.
StatusCode CheckDataLength(const DataPointer& data, uint64_t length, const CapsuleLimits& limits);

// The text of a field, up to its NUL: ConnectData's NQNs. nullopt when no NUL is in the field, or
// the text has more than `max_bytes`.
std::optional<std::string_view> TextOf(absl::Span<const char> field, size_t max_bytes);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_CAPSULE_H_
