#include "supervisor/batond/stay_pipe.h"

#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "spdlog/spdlog.h"

namespace baton {
namespace {

// The names at the manager. The release before kept numbered files, and these were the first two.
constexpr char kReadingEnd[] = "file.1";
constexpr char kWritingEnd[] = "file.2";

void Tell(const std::string& message, const int* descriptor) {
  const int result = sd_pid_notify_with_fds(/*pid=*/0, /*unset_environment=*/0, message.c_str(),
                                            descriptor, descriptor == nullptr ? 0 : 1);
  if (result >= 0) return;
  spdlog::error("the service manager cannot be told what to keep: {}", strerror(-result));
}

// FDPOLL=0: the manager keeps an end also when the other end is gone.
void Store(const std::string& name, const FileDescriptor& end) {
  const int descriptor = end.get();
  Tell(absl::StrCat("FDSTORE=1\nFDPOLL=0\nFDNAME=", name), &descriptor);
}

void Remove(const std::string& name) {
  Tell(absl::StrCat("FDSTOREREMOVE=1\nFDNAME=", name), nullptr);
}

}  // namespace

StayPipe StayPipe::GivenBack() {
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  StayPipe pipe;
  for (int i = 0; i < count; ++i) {
    const std::string name = names[i];
    free(names[i]);
    FileDescriptor descriptor(SD_LISTEN_FDS_START + i);
    if (name == kReadingEnd) {
      pipe.reading = std::move(descriptor);
    } else if (name == kWritingEnd) {
      pipe.writing = std::move(descriptor);
    } else {
      Remove(name);
    }
  }
  free(names);
  return pipe;
}

absl::StatusOr<StayPipe> StayPipe::Keep(StayPipe given_back) {
  if (getenv("NOTIFY_SOCKET") == nullptr || getenv(kInitVariable) != nullptr) {
    return absl::FailedPreconditionError(
        "no service manager runs batond (see Type=notify and FileDescriptorStoreMax= of the unit)");
  }
  if (given_back.reading && given_back.writing) return given_back;
  if (given_back.reading || given_back.writing) GiveUp();
  BATON_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
  StayPipe made = {std::move(pipe.reading), std::move(pipe.writing)};
  Store(kReadingEnd, made.reading);
  Store(kWritingEnd, made.writing);
  return made;
}

void StayPipe::Leave(const StayPipe* pipe, OwnProgram* program) {
  program->LeaveVariable("LISTEN_FDS", pipe == nullptr ? "0" : "2");
  if (pipe == nullptr) return;
  program->LeaveVariable("LISTEN_PID", absl::StrCat(getpid()));
  program->LeaveVariable("LISTEN_FDNAMES", absl::StrCat(kReadingEnd, ":", kWritingEnd));
  // The copies are above both target numbers, so that neither dup2 overwrites the other end.
  const FileDescriptor writing = CopyOf(pipe->writing.get(), SD_LISTEN_FDS_START + 2);
  const FileDescriptor reading = CopyOf(pipe->reading.get(), SD_LISTEN_FDS_START + 2);
  dup2(reading.get(), SD_LISTEN_FDS_START);
  dup2(writing.get(), SD_LISTEN_FDS_START + 1);
}

void StayPipe::GiveUp() {
  Remove(kReadingEnd);
  Remove(kWritingEnd);
}

}  // namespace baton
