#include "lib/base/program_start.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/base/status.h"

namespace baton {
namespace {

constexpr absl::string_view kOpenFiles = "/proc/self/fd/";

std::string ReadLink(const char* link) {
  char path[4096];
  const ssize_t length = readlink(link, path, sizeof(path));
  return {path, length > 0 ? static_cast<size_t>(length) : 0};
}

}  // namespace

FileDescriptor GivenDescriptor(const char* variable) {
  const char* const number = std::getenv(variable);
  FileDescriptor descriptor(number == nullptr ? -1 : std::atoi(number));
  if (descriptor) (void)fcntl(descriptor.get(), F_SETFD, FD_CLOEXEC);
  return descriptor;
}

void TellReady(Readiness readiness) {
  const char* text = std::getenv(kReadyVariable);
  if (!text) return;
  const int fd = std::atoi(text);
  const char byte = static_cast<char>(readiness);
  if (write(fd, &byte, 1) == 1) close(fd);
  unsetenv(kReadyVariable);
}

absl::StatusOr<FileDescriptor> MemoryFileWith(std::string_view bytes) {
  FileDescriptor file(memfd_create("input", MFD_CLOEXEC));
  if (!file) return ErrnoStatus(errno, "memfd_create (see RLIMIT_NOFILE)");
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0) return ErrnoStatus(errno, "writing a program's input");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (lseek(file.get(), 0, SEEK_SET) != 0) return ErrnoStatus(errno, "lseek");
  return file;
}

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string OwnDirectory() {
  const std::string program = ReadLink("/proc/self/exe");
  return program.substr(0, program.rfind('/'));
}

std::string OpenHelper(const HelperProgram& helper) {
  const std::string path = absl::StrCat(OwnDirectory(), "/", helper.name);
  FileDescriptor file = GivenDescriptor(helper.variable);
  if (!file) file.Reset(open(path.c_str(), O_PATH | O_CLOEXEC));
  return file ? OpenFilePath(file.Release()) : path;
}

std::string OpenFilePath(int descriptor) { return absl::StrCat(kOpenFiles, descriptor); }

int OpenFileOf(std::string_view path) {
  absl::string_view number(path.data(), path.size());
  int descriptor = -1;
  const bool is_open =
      absl::ConsumePrefix(&number, kOpenFiles) && absl::SimpleAtoi(number, &descriptor);
  return is_open ? descriptor : -1;
}

std::string PlaceOfOpenFile(int descriptor) {
  const std::string place = ReadLink(OpenFilePath(descriptor).c_str());
  return std::string(absl::StripSuffix(place, " (deleted)"));
}

bool IsForOneProcess(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  return name.size() < variable.size() &&
         (name == "NOTIFY_SOCKET" || name == kReadyVariable || name == "BATON_CONTROL_FD" ||
          name == kLockVariable || name == kControlLockVariable || name == kStayVariable ||
          name == "BATON_HEARTBEAT_FD" || name == "BATON_OPERATOR_SOCKET_FD" ||
          name == "BATON_WORKER_SOCKET_FD" || name == kOrdersVariable || name == kNewsVariable ||
          name == kNetworkVariable || name == kNicProgram.variable ||
          name == kDriverCode.variable || name == kLaunchProgram.variable ||
          name == kProbationVariable || name == kProbationTimeVariable ||
          name == kGivenUpVariable || name == kProgramVariable || name == kInitVariable ||
          name == kFormerEndVariable);
}

}  // namespace baton
