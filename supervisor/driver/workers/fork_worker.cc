#include "supervisor/driver/workers/fork_worker.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "lib/base/status.h"
#include "lib/native/mappings.h"
#include "lib/native/native_object.h"
#include "supervisor/driver/engine/news_line.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {
namespace {

NativeDriver* g_driver = nullptr;

// native_workers.md has the list.
std::vector<int> DescriptorsOf(const NativeInheritance& inheritance) {
  std::vector<int> descriptors = inheritance.wakes;
  descriptors.insert(descriptors.end(), {inheritance.session, inheritance.driver_wake,
                                         inheritance.news, inheritance.presence});
  return descriptors;
}

// Returns only with an error.
absl::Status BecomeWorker(const NativeProgram& program, NativeInheritance inheritance, int output) {
  if (dup2(output, STDERR_FILENO) < 0) return ErrnoStatus(errno, "standard error");
  BATON_ASSIGN_OR_RETURN(
      inheritance.lifeline,
      ConfineChild({.arena = inheritance.arena,
                    .device = inheritance.device,
                    .descriptors = DescriptorsOf(inheritance),
                    .lifeline = inheritance.lifeline,
                    .identity = {program.uid, program.gid, inheritance.realtime_priority}}));
  const bool outside_effects = inheritance.outside_effects;
  const int presence = inheritance.presence;
  // The driver object lives as long as the process.
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<NativeDriver> driver,
                         NativeDriver::Create(std::move(inheritance)));
  g_driver = driver.release();
  BATON_ASSIGN_OR_RETURN(const native::NativeObject object,
                         native::NativeObject::Load(program.object));
  // Otherwise peers would wait for page faults when this worker takes over as an heir.
  native::Prefault();
  // With outside effects there is no unmapper, because the successor waits until this process's
  // memory is gone. The unmapper holds `presence`, so the next driver waits for it, too.
  const absl::Status started = outside_effects ? absl::OkStatus() : native::StartUnmapper(presence);
  if (!started.ok()) {
    std::fprintf(stderr,
                 "baton: who follows this worker may wait for longer, without unmapper: %s\n",
                 std::string(MessageOf(started)).c_str());
  }
  object.Run(program.arguments);
}

void RunChild(const NativeProgram& program, NativeInheritance inheritance, int output) {
  BeginChild("baton-native");
  const int news = inheritance.news;
  const absl::Status status = BecomeWorker(program, std::move(inheritance), output);
  const std::string line = NewsLine(kWorkerFailed, MessageOf(status));
  (void)!write(news, line.data(), line.size());
}

}  // namespace

BatonNativeHost* HostOfThisProcess() { return g_driver == nullptr ? nullptr : g_driver->host(); }

absl::StatusOr<ForkedWorker> ForkWorker(const NativeProgram& program, NativeInheritance inheritance,
                                        int output) {
  BATON_ASSIGN_OR_RETURN(SocketPair session, MakeSocketPair(SOCK_STREAM));
  inheritance.session = session.theirs.get();
  ForkedWorker worker;
  BATON_ASSIGN_OR_RETURN(worker.process,
                         ForkChild([&] { RunChild(program, inheritance, output); }));
  worker.session = std::move(session.ours);
  return worker;
}

}  // namespace baton::driver_process
