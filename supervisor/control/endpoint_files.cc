#include "supervisor/control/endpoint_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/errno_status.h"
#include "lib/base/status_macros.h"

namespace baton {
namespace {

constexpr size_t kMaxFileBytes = 16 << 20;
constexpr size_t kReadBytes = 65536;

absl::StatusOr<std::string> ReadWhole(int file) {
  std::string text;
  for (;;) {
    const size_t before = text.size();
    if (before > kMaxFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("is longer than ", kMaxFileBytes, " bytes; name another file"));
    }
    text.resize(before + kReadBytes);
    const ssize_t got = read(file, text.data() + before, kReadBytes);
    text.resize(before + static_cast<size_t>(got > 0 ? got : 0));
    if (got == 0) return text;
    if (got < 0 && errno != EINTR) return ErrnoStatus(errno, "read");
  }
}

absl::Status Read(const char* field, const std::string& path, const FileOpener& open,
                  std::string* text) {
  const absl::StatusOr<FileDescriptor> file = open(path);
  absl::StatusOr<std::string> read =
      file.ok() ? ReadWhole(file->get()) : absl::StatusOr<std::string>(file.status());
  if (read.ok()) {
    *text = *std::move(read);
    return absl::OkStatus();
  }
  return absl::Status(
      read.status().code(),
      absl::StrCat("operator_endpoint.", field, ": ", path, ": ", read.status().message(),
                   "; put the file there, readable for batond's user, or mend the path"));
}

absl::Status Replace(const FileDescriptor& file, const std::string& text) {
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, "a copy of operator_endpoint's files");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FileDescriptor> OpenForReading(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return ErrnoStatus(errno, "open");
  return file;
}

absl::StatusOr<EndpointPem> ReadEndpointFiles(const v1::OperatorEndpoint& endpoint,
                                              const FileOpener& open) {
  EndpointPem pem;
  BATON_RETURN_IF_ERROR(
      Read("certificate_file", endpoint.certificate_file(), open, &pem.certificate));
  BATON_RETURN_IF_ERROR(Read("key_file", endpoint.key_file(), open, &pem.key));
  BATON_RETURN_IF_ERROR(Read("client_ca_file", endpoint.client_ca_file(), open, &pem.client_ca));
  if (!endpoint.crl_file().empty()) {
    BATON_RETURN_IF_ERROR(Read("crl_file", endpoint.crl_file(), open, &pem.crl.emplace()));
  }
  return pem;
}

absl::StatusOr<EndpointCopies> EndpointCopies::Make() {
  EndpointCopies copies;
  for (FileDescriptor* file : {&copies.certificate_, &copies.key_, &copies.client_ca_}) {
    file->Reset(memfd_create("operator_endpoint", MFD_CLOEXEC));
    if (!*file) return ErrnoStatus(errno, "memfd_create (see RLIMIT_NOFILE)");
  }
  return copies;
}

absl::Status EndpointCopies::Write(const EndpointPem& pem) {
  BATON_RETURN_IF_ERROR(Replace(client_ca_, pem.client_ca));
  BATON_RETURN_IF_ERROR(Replace(key_, pem.key));
  return Replace(certificate_, pem.certificate);
}

std::string EndpointCopies::PathOf(const FileDescriptor& file) {
  return absl::StrCat("/proc/self/fd/", file.get());
}

}  // namespace baton
