#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>

#include "lib/base/check.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/shared_reads.h"
#include "worker/examples/nvmed/capsule.h"
#include "worker/examples/nvmed/identify.h"

namespace baton::fuzz {
namespace {

using nvmed::Capsule;
using nvmed::CapsuleLimits;
using nvmed::DataDirection;
using nvmed::DataPointer;
using nvmed::LogPageRequest;
using nvmed::SglDescriptor;
using nvmed::StatusCode;
using nvmed::SubmissionEntry;

using Wide = unsigned __int128;  // no sum of what the wire holds wraps

constexpr size_t kMaxReceived = 20'000;
constexpr size_t kMaxPiece = 8192;
constexpr uint8_t kUntouched = 0x5c;

// The memory has exactly the block's size, so that the sanitizer sees whatever is read or written
// beyond it.
struct Block {
  explicit Block(size_t size) : bytes(std::make_unique<uint8_t[]>(size)), size(size) {}
  std::unique_ptr<uint8_t[]> bytes;
  size_t size;
};

CapsuleLimits LimitsOf(Program& program) {
  static constexpr uint32_t kInCapsule[] = {0, 512, 4096, 8192};
  static constexpr uint32_t kTransfer[] = {4096, 128 << 10, 0xffffffff};
  CapsuleLimits limits;
  limits.admin_queue = program.Flag();
  limits.in_capsule_bytes = kInCapsule[program.Below(std::size(kInCapsule))];
  limits.max_transfer_bytes = kTransfer[program.Below(std::size(kTransfer))];
  return limits;
}

// A command that is not far from a good one.
SubmissionEntry CommandOf(Program& program, const CapsuleLimits& limits) {
  static constexpr uint8_t kOpcodes[] = {0x7f, 0x00, 0x01, 0x02, 0x05, 0x06, 0x09, 0x0a};
  static constexpr uint8_t kFlags[] = {0x40, 0x40, 0x80, 0x00, 0xc0, 0x41};
  static constexpr uint8_t kIdentifiers[] = {0x01, 0x40, 0x4f, 0x00, 0x21, 0x31, 0x5a};
  const auto one_of = [&](const auto& usual) {
    const uint8_t pick = program.Byte();
    return pick < 224 ? usual[pick % std::size(usual)] : program.Byte();
  };
  SubmissionEntry command = {};
  command.opcode = one_of(kOpcodes);
  command.flags = one_of(kFlags);
  command.nsid = program.Byte();
  command.sgl1.identifier = one_of(kIdentifiers);
  command.sgl1.address = program.Near(program.Flag() ? limits.in_capsule_bytes : 0);
  const uint64_t bases[] = {0, limits.in_capsule_bytes, limits.max_transfer_bytes, 4096};
  command.sgl1.length = static_cast<uint32_t>(program.Near(bases[program.Below(4)]));
  command.sgl1.reserved[0] = program.Byte();
  command.cdw10 = program.Take<uint32_t>();
  command.cdw11 = program.Take<uint16_t>();
  command.cdw12 = static_cast<uint32_t>(program.Near(0));
  command.cdw13 = program.Byte();
  return command;
}

// What a queue has received: fewer bytes than a command, or more than it takes.
Block ReceivedOf(Program& program, const CapsuleLimits& limits) {
  const uint64_t bases[] = {64, 64 + 512, 64 + uint64_t{limits.in_capsule_bytes}};
  Block block(program.Near(bases[program.Below(3)]) % kMaxReceived);
  if (program.Flag()) {
    const std::string_view raw = program.Block(std::min<size_t>(block.size, 64));
    std::copy(raw.begin(), raw.end(), block.bytes.get());
  } else {
    const SubmissionEntry command = CommandOf(program, limits);
    std::memcpy(block.bytes.get(), &command, std::min(block.size, sizeof(command)));
  }
  return block;
}

bool HasData(const SubmissionEntry& command, const CapsuleLimits& limits) {
  const std::optional<uint64_t> length = nvmed::DataLength(command, limits.admin_queue, 9);
  return length.has_value() && *length > 0;
}

// Whether a command can be executed as far as its flags and its data pointer go.
bool IsGood(const SubmissionEntry& command, size_t received, const CapsuleLimits& limits) {
  const int psdt = command.flags >> 6;
  if (command.opcode != 0x7f && ((command.flags & 3) != 0 || psdt == 0 || psdt == 3)) return false;
  if (!HasData(command, limits)) return true;
  const SglDescriptor& sgl = command.sgl1;
  if (sgl.identifier == 0x40 || sgl.identifier == 0x4f) {
    return sgl.length % (1 << 24) <= limits.max_transfer_bytes;
  }
  const uint8_t opcode = command.opcode == 0x7f ? command.nsid % 256 : command.opcode;
  const Wide end = Wide{sgl.address} + sgl.length;
  return sgl.identifier == 0x01 && opcode % 4 == 1 && limits.in_capsule_bytes > 0 &&
         end <= limits.in_capsule_bytes && end + 64 <= received &&
         sgl.length <= limits.max_transfer_bytes;
}

bool IsRefusal(StatusCode status) {
  switch (status) {
    case StatusCode::kInvalidField:
    case StatusCode::kInvalidSglSegmentDescriptor:
    case StatusCode::kInvalidNumberOfSglDescriptors:
    case StatusCode::kDataSglLengthInvalid:
    case StatusCode::kSglDescriptorTypeInvalid:
    case StatusCode::kSglOffsetInvalid:
      return true;
    default:
      return false;
  }
}

// The data pointer says what the command's does, and nothing outside of what was received.
void CheckData(const Capsule& capsule, size_t received, const CapsuleLimits& limits) {
  const DataPointer& data = capsule.data;
  const SglDescriptor& sgl = capsule.command.sgl1;
  BATON_CHECK(data.length <= limits.max_transfer_bytes);
  BATON_CHECK((data.kind == DataPointer::Kind::kNone) == (data.length == 0));
  if (data.kind == DataPointer::Kind::kInCapsule) {
    BATON_CHECK(sgl.identifier == 0x01 && data.length == sgl.length);
    BATON_CHECK(data.offset >= 64 && data.offset - 64 == sgl.address);
    BATON_CHECK(Wide{data.offset} + data.length <= received);
    BATON_CHECK(!data.invalidate_key);
  } else if (data.kind == DataPointer::Kind::kKeyed) {
    uint8_t bytes[sizeof(sgl)];
    std::memcpy(bytes, &sgl, sizeof(sgl));
    uint32_t length = 0, key = 0;
    std::memcpy(&length, bytes + 8, 3);
    std::memcpy(&key, bytes + 11, sizeof(key));
    BATON_CHECK(data.address == sgl.address && data.key == key && data.length == length);
    BATON_CHECK(data.invalidate_key == (sgl.identifier == 0x4f));
  } else if (capsule.status == StatusCode::kSuccess && HasData(capsule.command, limits)) {
    BATON_CHECK((sgl.identifier == 0x01 ? sgl.length : sgl.length % (1 << 24)) == 0);
  }
}

void CheckLengths(const Capsule& capsule, const CapsuleLimits& limits, uint8_t block_shift) {
  const std::optional<uint64_t> length =
      nvmed::DataLength(capsule.command, limits.admin_queue, block_shift);
  if (!length.has_value()) return;
  const DataDirection direction = nvmed::DirectionOf(capsule.command);
  BATON_CHECK(*length == 0 || direction == DataDirection::kToController ||
              direction == DataDirection::kToHost);
  const StatusCode status = nvmed::CheckDataLength(capsule.data, *length, limits);
  const bool enough = *length <= capsule.data.length;
  BATON_CHECK((status == StatusCode::kSuccess) == enough);
  BATON_CHECK(enough ||
              (status == StatusCode::kInvalidField) == (*length > limits.max_transfer_bytes));
  BATON_CHECK(enough || IsRefusal(status));
}

// Everything follows from the copy of the command, whatever has become of the bytes meanwhile.
void CheckCapsule(const Capsule& capsule, size_t received, const CapsuleLimits& limits) {
  const bool good = capsule.status == StatusCode::kSuccess;
  BATON_CHECK(good == IsGood(capsule.command, received, limits));
  BATON_CHECK(good || IsRefusal(capsule.status));
  BATON_CHECK(good || capsule.data.kind == DataPointer::Kind::kNone);
  CheckData(capsule, received, limits);
}

void CheckLogPage(Program& program, const SubmissionEntry& command) {
  LogPageRequest request = nvmed::LogPageRequestOf(command);
  BATON_CHECK(request.length >= 4 && request.length <= uint64_t{1} << 34);
  BATON_CHECK(request.length % 4 == 0);
  if (command.opcode == 0x02) {
    BATON_CHECK(nvmed::DataLength(command, true, 0) == request.length);
  }
  Block page(program.Take<uint16_t>() % kMaxPiece);
  if (program.Flag()) request.offset = program.Near(page.size);
  for (size_t i = 0; i < page.size; ++i) page.bytes[i] = static_cast<uint8_t>(i * 7 + 1);
  Block out(std::min<uint64_t>(request.length, kMaxPiece));
  std::memset(out.bytes.get(), kUntouched, out.size);
  const StatusCode status =
      nvmed::CopyLogPage({page.bytes.get(), page.size}, request, {out.bytes.get(), out.size});
  const bool good =
      !request.offset_is_index && request.offset % 4 == 0 && request.offset <= page.size;
  BATON_CHECK(status == (good ? StatusCode::kSuccess : StatusCode::kInvalidField));
  for (size_t i = 0; i < out.size; ++i) {
    const Wide at = Wide{request.offset} + i;
    const uint8_t expected = at < page.size ? page.bytes[static_cast<size_t>(at)] : 0;
    BATON_CHECK(out.bytes[i] == (good ? expected : kUntouched));
  }
}

void CheckText(Program& program) {
  const std::string_view bytes = program.Block(program.Byte());
  const size_t max_bytes = program.Byte();
  Block field(bytes.size());
  std::copy(bytes.begin(), bytes.end(), field.bytes.get());
  const auto text =
      nvmed::TextOf({reinterpret_cast<const char*>(field.bytes.get()), field.size}, max_bytes);
  const size_t end = bytes.find('\0');
  BATON_CHECK(text.has_value() == (end != bytes.npos && end <= max_bytes));
  BATON_CHECK(!text.has_value() || *text == bytes.substr(0, end));
}

}  // namespace

// A host's capsule, which may change while it is parsed, and what its command asks for.
void NvmeCapsule(const uint8_t* data, size_t size) {
  Program program(data, size);
  const CapsuleLimits limits = LimitsOf(program);
  const uint8_t block_shift = static_cast<uint8_t>(9 + program.Below(8));
  const Block received = ReceivedOf(program, limits);
  SharedReads::Watch(received.bytes.get(), received.size);
  if (program.Flag()) SharedReads::Interfere(Interference::Of(program));
  const auto capsule = nvmed::ParseCapsule({received.bytes.get(), received.size}, limits);
  SharedReads::Forget();
  BATON_CHECK(capsule.ok() == (received.size >= 64));
  if (capsule.ok()) {
    CheckCapsule(*capsule, received.size, limits);
    CheckLengths(*capsule, limits, block_shift);
    CheckLogPage(program, capsule->command);
  }
  CheckText(program);
}

}  // namespace baton::fuzz
