#include "worker/examples/nvmed/io_command.h"

#include <errno.h>

#include <cstring>

namespace baton::nvmed {
namespace {

StatusCode StatusOfErrno(int error, bool read) {
  switch (error) {
    case 0:
      return StatusCode::kSuccess;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return StatusCode::kCapacityExceeded;
    case EROFS:
    case EPERM:
    case EBADF:
      return StatusCode::kNamespaceWriteProtected;
    case EIO:
    case EREMOTEIO:
    case ENODATA:
    case EILSEQ:
      return read ? StatusCode::kUnrecoveredReadError : StatusCode::kWriteFault;
    default:
      return StatusCode::kInternalError;
  }
}

bool IsWithin(const Namespace& space, uint64_t slba, uint64_t blocks) {
  return slba <= space.blocks && blocks <= space.blocks - slba;
}

// Sets the range of Read, Write and Write Zeroes.
StatusCode SetRange(const SubmissionEntry& command, IoWork* work) {
  const auto block = ViewOf<BlockCommand>(command);
  const uint64_t blocks = uint64_t{block.nlb} + 1;
  if (!IsWithin(*work->space, block.slba, blocks)) return StatusCode::kLbaOutOfRange;
  // No namespace has protection information.
  if ((block.control & kBlockProtectionMask) != 0) return StatusCode::kInvalidField;
  work->offset = block.slba << work->space->block_shift;
  work->bytes = blocks << work->space->block_shift;
  work->through = (block.control & kBlockForceUnitAccess) != 0;
  work->deallocate = (block.control & kBlockDeallocate) != 0;
  return StatusCode::kSuccess;
}

// Returns the number of data bytes of the command behind `work`.
uint64_t DataBytes(const IoWork& work) {
  switch (work.kind) {
    case IoWork::Kind::kRead:
    case IoWork::Kind::kWrite:
      return work.bytes;
    case IoWork::Kind::kDeallocate:
      return uint64_t{work.ranges} * sizeof(DatasetRange);
    default:
      return 0;
  }
}

StatusCode Deallocate(const IoWork& work, absl::Span<const uint8_t> data) {
  // All ranges are checked before the first is deallocated.
  const bool prompt = work.space->backing->prompt();
  if (prompt && work.ranges > kPromptRanges) return StatusCode::kCommandSizeLimitExceeded;
  DatasetRange range;
  for (uint32_t i = 0; i < work.ranges; ++i) {
    std::memcpy(&range, data.data() + i * sizeof(range), sizeof(range));
    if (!IsWithin(*work.space, range.slba, range.nlb)) return StatusCode::kLbaOutOfRange;
    if (prompt && range.nlb > kPromptRangeBlocks) return StatusCode::kCommandSizeLimitExceeded;
  }
  for (uint32_t i = 0; i < work.ranges; ++i) {
    std::memcpy(&range, data.data() + i * sizeof(range), sizeof(range));
    if (range.nlb == 0) continue;
    const int error = work.space->backing->Deallocate(
        range.slba << work.space->block_shift, uint64_t{range.nlb} << work.space->block_shift);
    if (error != 0) return StatusOfErrno(error, false);
  }
  return StatusCode::kSuccess;
}

}  // namespace

bool IsOverlap(const IoWork& one, const IoWork& other) {
  if (one.space != other.space || !one.writes() || !other.writes()) return false;
  return one.kind == IoWork::Kind::kDeallocate || other.kind == IoWork::Kind::kDeallocate ||
         (one.offset < other.offset + other.bytes && other.offset < one.offset + one.bytes);
}

StatusCode MakeWork(const SubmissionEntry& command, Subsystem& subsystem, IoWork* work) {
  work->space = subsystem.Find(command.nsid);
  const auto opcode = static_cast<IoOpcode>(command.opcode);
  switch (opcode) {
    case IoOpcode::kFlush:
    case IoOpcode::kRead:
    case IoOpcode::kWrite:
    case IoOpcode::kWriteZeroes:
    case IoOpcode::kDatasetManagement:
      break;
    default:
      return StatusCode::kInvalidOpcode;
  }
  if (work->space == nullptr) return StatusCode::kInvalidNamespaceOrFormat;
  StatusCode status = StatusCode::kSuccess;
  switch (opcode) {
    case IoOpcode::kRead:
      work->kind = IoWork::Kind::kRead;
      status = SetRange(command, work);
      break;
    case IoOpcode::kWrite:
      work->kind = IoWork::Kind::kWrite;
      status = SetRange(command, work);
      break;
    case IoOpcode::kWriteZeroes:
      work->kind = IoWork::Kind::kWriteZeroes;
      status = SetRange(command, work);
      break;
    case IoOpcode::kDatasetManagement: {
      const auto dataset = ViewOf<DatasetManagementCommand>(command);
      work->kind = IoWork::Kind::kDeallocate;
      // The other attributes are hints.
      work->ranges = (dataset.attributes & kDatasetDeallocate) != 0 ? uint32_t{dataset.nr} + 1 : 0;
      break;
    }
    default:
      work->kind = IoWork::Kind::kFlush;
      break;
  }
  if (status == StatusCode::kSuccess && work->writes() && work->space->backing->read_only()) {
    return StatusCode::kNamespaceWriteProtected;
  }
  return status;
}

StatusCode Run(const IoWork& work, absl::Span<uint8_t> data) {
  if (data.size() < DataBytes(work)) return StatusCode::kInternalError;
  data = data.subspan(0, DataBytes(work));
  Backing& backing = *work.space->backing;
  switch (work.kind) {
    case IoWork::Kind::kRead:
      return StatusOfErrno(backing.Read(work.offset, data), true);
    case IoWork::Kind::kWrite:
      return StatusOfErrno(backing.Write(work.offset, data, work.through), false);
    case IoWork::Kind::kFlush:
      return StatusOfErrno(backing.Flush(), false);
    case IoWork::Kind::kWriteZeroes:
      return StatusOfErrno(
          backing.WriteZeroes(work.offset, work.bytes, work.deallocate, work.through), false);
    case IoWork::Kind::kDeallocate:
      return Deallocate(work, data);
  }
  return StatusCode::kInternalError;
}

bool IsLasting(StatusCode status) {
  switch (status) {
    case StatusCode::kSuccess:
    case StatusCode::kInternalError:
    case StatusCode::kNamespaceNotReady:
    case StatusCode::kCommandInterrupted:
    case StatusCode::kConnectControllerBusy:
      return false;
    default:
      return true;
  }
}

}  // namespace baton::nvmed
