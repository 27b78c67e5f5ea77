#include "supervisor/inspect/snapshot_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/arena/text_field.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/version.h"

namespace baton::inspect {
namespace {

constexpr size_t kChunk = 1 << 20;
// The driver log is copied first, so that what its cursors call committed is in the worker log,
// which is copied later.
constexpr arena::MemoryKind kOrder[] = {arena::kDriverLogMemory, arena::kRecoveryMemory,
                                        arena::kBuffersMemory, arena::kWorkerLogMemory};

uint32_t HeaderChecksum(SnapshotHeader header) {
  header.checksum = 0;
  boost::crc_32_type crc;
  crc.process_bytes(&header, sizeof(header));
  return crc.checksum();
}

// Returns the checksum of all that is read, which `take` gets piece by piece.
absl::StatusOr<uint32_t> ReadAll(
    const Memory& memory,
    const std::function<absl::Status(uint64_t at, const std::vector<uint8_t>& chunk)>& take) {
  boost::crc_32_type crc;
  std::vector<uint8_t> chunk;
  for (uint64_t at = 0; at < memory.size(); at += chunk.size()) {
    chunk.resize(std::min<uint64_t>(kChunk, memory.size() - at));
    BATON_RETURN_IF_ERROR(memory.Read(at, chunk.data(), chunk.size()));
    crc.process_bytes(chunk.data(), chunk.size());
    BATON_RETURN_IF_ERROR(take(at, chunk));
  }
  return crc.checksum();
}

// ---------------------------------------------------------------- saving

std::string DirectoryOf(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

// Returns a header with the places of all parts.
SnapshotHeader PlanFile(const ArenaView& arena, const SnapshotOptions& options) {
  SnapshotHeader header = {};
  header.magic = kSnapshotMagic;
  header.version = kSnapshotVersion;
  header.layout_version = arena.layout_version;
  header.pid = arena.files.pid;
  arena::SetText(header.service, arena.service);
  arena::SetText(header.release, kRelease);
  arena::SetText(header.program, arena.files.program);
  arena::SetText(header.decoder, options.decoder);
  header.file_bytes = sizeof(header);
  for (const arena::MemoryKind kind : kOrder) {
    const Memory& memory = arena.files.memories[kind];
    if (!memory.exists() || (kind == arena::kBuffersMemory && !options.buffers)) continue;
    header.parts[kind] = {header.file_bytes, memory.size(), 0, {}};
    header.file_bytes += arena::AlignUp(memory.size(), kSnapshotPage);
  }
  return header;
}

absl::Status CheckRoom(const std::string& directory, uint64_t bytes) {
  struct statvfs disk = {};
  if (statvfs(directory.c_str(), &disk) != 0) return ErrnoStatus(errno, directory);
  const uint64_t free = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (bytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the snapshot may need ", (bytes >> 20) + 1, " MiB, and ", free >> 20,
                   " MiB are free in ", directory, ": choose another directory",
                   bytes > (1u << 30) ? ", or leave out --buffers" : ""));
}

absl::Status CheckTarget(const std::string& path, bool overwrite) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, path);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is there and is no regular file"));
  }
  if (overwrite) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " is there already: --force overwrites it"));
}

absl::Status WriteAll(int fd, uint64_t at, const void* bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t written = pwrite(fd, static_cast<const uint8_t*>(bytes) + done, count - done,
                                   static_cast<off_t>(at + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, "writing the snapshot");
    done += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

bool IsZero(const uint8_t* bytes, size_t count) {
  return bytes[0] == 0 && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

// Pages of zeros stay holes, because the file has its length already.
absl::Status WriteMemory(const Memory& memory, int fd, SnapshotPart* part) {
  const auto write = [&](uint64_t at, const std::vector<uint8_t>& chunk) -> absl::Status {
    for (size_t page = 0; page < chunk.size(); page += kSnapshotPage) {
      const size_t count = std::min<size_t>(kSnapshotPage, chunk.size() - page);
      if (IsZero(chunk.data() + page, count)) continue;
      BATON_RETURN_IF_ERROR(WriteAll(fd, part->offset + at + page, chunk.data() + page, count));
    }
    return absl::OkStatus();
  };
  BATON_ASSIGN_OR_RETURN(part->checksum, ReadAll(memory, write));
  return absl::OkStatus();
}

absl::Status WriteFile(const ArenaView& arena, int fd, SnapshotHeader header) {
  if (ftruncate(fd, static_cast<off_t>(header.file_bytes)) != 0) {
    return ErrnoStatus(errno, "making room for the snapshot");
  }
  for (const arena::MemoryKind kind : kOrder) {
    SnapshotPart& part = header.parts[kind];
    if (part.bytes == 0) continue;
    BATON_RETURN_IF_ERROR(WriteMemory(arena.files.memories[kind], fd, &part));
  }
  header.unix_micros = UnixMicroseconds();
  header.monotonic_ns = MonotonicNanoseconds();
  header.checksum = HeaderChecksum(header);
  BATON_RETURN_IF_ERROR(WriteAll(fd, 0, &header, sizeof(header)));
  return fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "writing the snapshot");
}

absl::Status Rename(const std::string& from, const std::string& to, bool overwrite) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), overwrite ? 0 : RENAME_NOREPLACE) !=
      0) {
    return ErrnoStatus(errno, absl::StrCat("renaming the snapshot to ", to));
  }
  const FileDescriptor directory(open(DirectoryOf(to).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return directory && fsync(directory.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, to);
}

// ---------------------------------------------------------------- reading

absl::Status Damaged(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " is not a snapshot, or is damaged: ", why));
}

absl::Status CheckHeader(const std::string& path, const SnapshotHeader& header, uint64_t size) {
  if (header.magic != kSnapshotMagic) return Damaged(path, "it does not begin with BATONSNP");
  if (header.version != kSnapshotVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a snapshot of version ",
                                                      header.version, ", this baton reads version ",
                                                      kSnapshotVersion));
  }
  if (header.checksum != HeaderChecksum(header)) return Damaged(path, "its header's checksum");
  if (header.file_bytes != size) {
    return Damaged(path, absl::StrCat("it has ", size, " bytes of ", header.file_bytes));
  }
  for (const SnapshotPart& part : header.parts) {
    if (part.bytes == 0) continue;
    if (part.offset % kSnapshotPage != 0 || part.offset < sizeof(header) || part.offset > size ||
        part.bytes > size - part.offset) {
      return Damaged(path, "a part lies outside of it");
    }
  }
  if (header.parts[arena::kWorkerLogMemory].bytes == 0 ||
      header.parts[arena::kDriverLogMemory].bytes == 0) {
    return Damaged(path, "it has no logs");
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const std::string& path, const Memory& memory, uint32_t checksum) {
  const auto ignore = [](uint64_t /*at*/, const auto& /*chunk*/) { return absl::OkStatus(); };
  BATON_ASSIGN_OR_RETURN(const uint32_t found, ReadAll(memory, ignore));
  if (found == checksum) return absl::OkStatus();
  return Damaged(path, absl::StrCat("the checksum of its ", memory.name()));
}

}  // namespace

absl::StatusOr<uint64_t> SaveSnapshot(const ArenaView& arena, const std::string& path,
                                      const SnapshotOptions& options) {
  if (options.buffers && !arena.files.buffers().exists()) {
    return absl::FailedPreconditionError("--buffers: the buffers are not there");
  }
  const SnapshotHeader header = PlanFile(arena, options);
  BATON_RETURN_IF_ERROR(CheckTarget(path, options.overwrite));
  BATON_RETURN_IF_ERROR(CheckRoom(DirectoryOf(path), header.file_bytes));
  const std::string unfinished = absl::StrCat(path, ".", getpid(), ".tmp");
  const FileDescriptor file(
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return ErrnoStatus(errno, unfinished);
  absl::Status status = WriteFile(arena, file.get(), header);
  if (status.ok()) status = Rename(unfinished, path, options.overwrite);
  if (!status.ok()) {
    unlink(unfinished.c_str());
    return status;
  }
  return header.file_bytes;
}

absl::StatusOr<ArenaFiles> OpenSnapshot(const std::string& path) {
  // O_NONBLOCK: opening a pipe would wait for its other end.
  auto file =
      std::make_shared<FileDescriptor>(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!*file) return ErrnoStatus(errno, path);
  struct stat info = {};
  if (fstat(file->get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return Damaged(path, "it is no regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  const auto header = Memory(file, 0, size, "header").Read<SnapshotHeader>(0);
  if (!header.ok()) return Damaged(path, "it is shorter than a header");
  BATON_RETURN_IF_ERROR(CheckHeader(path, *header, size));
  ArenaFiles files;
  for (size_t i = 0; i < files.memories.size(); ++i) {
    const SnapshotPart& part = header->parts[i];
    if (part.bytes == 0) continue;
    files.memories[i] = Memory(file, part.offset, part.bytes, arena::kMemoryTitles[i]);
    BATON_RETURN_IF_ERROR(CheckPart(path, files.memories[i], part.checksum));
  }
  files.pid = header->pid;
  files.program = arena::TextOf(header->program);
  files.file = path;
  files.release = arena::TextOf(header->release);
  files.decoder = arena::TextOf(header->decoder);
  files.saved_unix_micros = header->unix_micros;
  files.saved_monotonic_ns = header->monotonic_ns;
  return files;
}

}  // namespace baton::inspect
