#include "supervisor/keeper/programs/brokered_programs.h"

#include <fcntl.h>

#include <boost/asio/posix/stream_descriptor.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status_macros.h"
#include "lib/loop/await_readable.h"
#include "supervisor/keeper/programs/program_output.h"

namespace baton::keeper {
namespace {

constexpr char kHeldProcesses[] = "lasting/process/";
constexpr size_t kHeldDescriptors = 2;  // of a process: its pidfd, and the pipe that it prints to

std::string HeldProcessKey(pid_t pid) { return absl::StrCat(kHeldProcesses, pid); }

}  // namespace

struct BrokeredPrograms::HeldProcess {
  HeldProcess(boost::asio::io_context& loop, FileDescriptor pidfd) : end(loop, pidfd.Release()) {}

  boost::asio::posix::stream_descriptor end;
  std::unique_ptr<ProgramOutput> output;  // null: it is read where the process was started
};

BrokeredPrograms::BrokeredPrograms(boost::asio::io_context& loop, const std::string& launcher,
                                   ServiceDriver& driver, FileDescriptor batonds_network)
    : loop_(loop),
      launcher_(launcher),
      driver_(driver),
      batonds_network_(std::move(batonds_network)),
      reader_(loop, launcher) {}

BrokeredPrograms::~BrokeredPrograms() = default;

absl::StatusOr<StartedProgram> BrokeredPrograms::Start(const internal::Program& program) {
  BATON_ASSIGN_OR_RETURN(StartedProgram started,
                         StartProgram(program, launcher_, batonds_network_.get()));
  driver_.Hold(HeldProcessKey(started.pid), "", {started.pidfd.get(), started.output.get()});
  Watch(started.pid, FileDescriptor(fcntl(started.pidfd.get(), F_DUPFD_CLOEXEC, 0)), {});
  started.Enter();  // the next keeper knows the process by now
  return started;
}

void BrokeredPrograms::Restore(ServiceDriver::HeldByKey& held) {
  for (auto& [key, entry] : held) {
    pid_t pid = 0;
    if (!key.starts_with(kHeldProcesses) || entry.descriptors.size() != kHeldDescriptors ||
        !absl::SimpleAtoi(key.substr(sizeof(kHeldProcesses) - 1), &pid)) {
      continue;
    }
    Watch(pid, std::move(entry.descriptors[0]), std::move(entry.descriptors[1]));
  }
}

void BrokeredPrograms::Watch(pid_t pid, FileDescriptor pidfd, FileDescriptor output) {
  if (!pidfd) return;
  auto process = std::make_unique<HeldProcess>(loop_, std::move(pidfd));
  if (output) {
    process->output =
        std::make_unique<ProgramOutput>(loop_, std::move(output), absl::StrCat("process ", pid));
  }
  AwaitReadable(process->end, [this, pid] {
    driver_.Drop(HeldProcessKey(pid));
    held_.erase(pid);
  });
  held_[pid] = std::move(process);
}

FileDescriptor BrokeredPrograms::PidfdOf(pid_t pid) const {
  const auto process = held_.find(pid);
  if (process == held_.end()) return {};
  return FileDescriptor(fcntl(process->second->end.native_handle(), F_DUPFD_CLOEXEC, 0));
}

}  // namespace baton::keeper
