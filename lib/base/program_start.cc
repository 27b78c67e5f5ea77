#include "lib/base/program_start.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "lib/base/status.h"

namespace baton {

FileDescriptor GivenDescriptor(const char* variable) {
  const char* const number = std::getenv(variable);
  FileDescriptor descriptor(number == nullptr ? -1 : std::atoi(number));
  if (descriptor) (void)fcntl(descriptor.get(), F_SETFD, FD_CLOEXEC);
  return descriptor;
}

void TellReady() {
  const char* text = std::getenv(kReadyVariable);
  if (!text) return;
  const int fd = std::atoi(text);
  const char byte = 1;
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
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/'));
}

bool IsForOneProcess(std::string_view variable) {
  const std::string_view name = variable.substr(0, variable.find('='));
  return name.size() < variable.size() &&
         (name == "NOTIFY_SOCKET" || name == kReadyVariable || name == "BATON_CONTROL_FD" ||
          name == kLockVariable || name == kStayVariable || name == "BATON_HEARTBEAT_FD" ||
          name == "BATON_OPERATOR_SOCKET_FD" || name == "BATON_WORKER_SOCKET_FD" ||
          name == kOrdersVariable || name == kNewsVariable || name == kNetworkVariable ||
          name == kProbationVariable || name == kGivenUpVariable || name == kProgramVariable ||
          name == kInitVariable || name == kFormerEndVariable);
}

}  // namespace baton
