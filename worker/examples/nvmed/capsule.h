// Parses a command capsule: the command, and where its data are. Pure functions of the bytes and of
// the limits that the host was told. The host wrote every byte, and the result is defined for any
// bytes.
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
  // Bytes after the 64 of the command: IOCCSZ * 16 - 64; for an admin queue 0.
  uint32_t in_capsule_bytes = 0;
  uint32_t max_transfer_bytes = 0;  // of one command (MDTS), and of one data pointer
};

// Where the data of a command are, or go to.
struct DataPointer {
  enum class Kind : uint8_t {
    kNone,       // no data; `length` is 0
    kInCapsule,  // [offset, offset + length) of the capsule, all of which was received
    kKeyed,      // `length` bytes of the host's memory, for a READ or WRITE
  };
  Kind kind = Kind::kNone;
  bool invalidate_key = false;  // kKeyed: the response must be a SEND that invalidates `key`
  uint32_t length = 0;          // at most max_transfer_bytes
  uint32_t offset = 0;          // kInCapsule: from the capsule's first byte, 64 at least
  uint32_t key = 0;             // kKeyed
  uint64_t address = 0;         // kKeyed: in the host's memory
};

struct Capsule {
  SubmissionEntry command = {};
  // kSuccess, or the status with which to complete the command unexecuted, with "do not retry" set;
  // `data` is kNone then.
  StatusCode status = StatusCode::kSuccess;
  DataPointer data;
};

// kInvalidArgument: `bytes` have no command that could be completed, so the connection must end.
// `bytes` may change meanwhile: ParseCapsule copies the command once and looks at the copy only. It
// ignores the data pointer of a command that moves no data, or that DataLength does not know; a
// controller refuses the latter.
absl::StatusOr<Capsule> ParseCapsule(absl::Span<const uint8_t> bytes, const CapsuleLimits& limits);

// The two low bits of the opcode, or of FCTYPE for Fabrics commands, encode it.
enum class DataDirection : uint8_t {
  kNone = 0,
  kToController = 1,
  kToHost = 2,
  kBoth = 3,  // no command that exists
};
DataDirection DirectionOf(const SubmissionEntry& command);

// Returns the bytes that a command moves. Its data pointer has to name at least so many; if it
// names more, the rest is not moved. nullopt: the command, or the feature of Get or Set Features,
// is unknown here. `block_shift`: of the namespace, below 32; only Read, Write and Compare use it.
std::optional<uint64_t> DataLength(const SubmissionEntry& command, bool admin_queue,
                                   uint8_t block_shift);

// Returns kSuccess if `length` bytes (DataLength's) can be moved, else the status with which to
// complete the command, with "do not retry" set. kInvalidField: they exceed the limit.
// kDataSglLengthInvalid: the data pointer names fewer.
StatusCode CheckDataLength(const DataPointer& data, uint64_t length, const CapsuleLimits& limits);

// Returns the text of a field, up to its NUL: ConnectData's NQNs. nullopt: the field has no NUL, or
// the text more than `max_bytes`.
std::optional<std::string_view> TextOf(absl::Span<const char> field, size_t max_bytes);

}  // namespace baton::nvmed

#endif  // WORKER_EXAMPLES_NVMED_CAPSULE_H_
