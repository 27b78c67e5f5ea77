#include "supervisor/driver/workers/fork_worker.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "lib/base/status.h"
#include "lib/native/mappings.h"
#include "lib/native/native_object.h"
#include "supervisor/driver/code/code_tables.h"
#include "supervisor/driver/code/loaded_code.h"
#include "supervisor/driver/engine/news_line.h"
#include "supervisor/driver/workers/forked_child.h"

namespace baton::driver_process {
namespace {

const BatonDriverCode* g_code = nullptr;

// native_workers.md has the list.
std::vector<int> DescriptorsOf(const NativeInheritance& inheritance) {
  std::vector<int> descriptors = inheritance.wakes;
  descriptors.insert(descriptors.end(), {inheritance.session, inheritance.driver_wake,
                                         inheritance.news, inheritance.presence});
  return descriptors;
}

// Returns only with an error.
absl::Status BecomeWorker(const NativeProgram& program, const ProgramFile& code,
                          NativeInheritance inheritance, int output) {
  if (dup2(output, STDERR_FILENO) < 0) return ErrnoStatus(errno, "standard error");
  // It is Baton's own, like this program, so it need not be readable for the worker's user.
  BATON_ASSIGN_OR_RETURN(const BatonDriverCode* const driver, LoadDriverCode(code.descriptor()));
  BATON_ASSIGN_OR_RETURN(
      inheritance.lifeline,
      ConfineChild({.arena = inheritance.arena,
                    .device = inheritance.device,
                    .descriptors = DescriptorsOf(inheritance),
                    .lifeline = inheritance.lifeline,
                    .identity = {program.uid, program.gid, inheritance.realtime_priority}}));
  const bool outside_effects = inheritance.outside_effects;
  const int presence = inheritance.presence;
  BATON_ASSIGN_OR_RETURN(const OwnerTable table, OwnerTable::Of(inheritance));
  if (const char* const why = driver->begin_owner(&table.host()); why != nullptr) {
    return absl::InternalError(why);
  }
  g_code = driver;
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

void RunChild(const NativeProgram& program, const ProgramFile& code, NativeInheritance inheritance,
              int output) {
  BeginChild("baton-native");
  const int news = inheritance.news;
  const absl::Status status = BecomeWorker(program, code, std::move(inheritance), output);
  const std::string line = NewsLine(kWorkerFailed, MessageOf(status));
  (void)!write(news, line.data(), line.size());
}

}  // namespace

BatonNativeHost* HostOfThisProcess() { return g_code == nullptr ? nullptr : g_code->native_host(); }

absl::StatusOr<ForkedWorker> ForkWorker(const NativeProgram& program, const ProgramFile& code,
                                        NativeInheritance inheritance, int output) {
  BATON_ASSIGN_OR_RETURN(SocketPair session, MakeSocketPair(SOCK_STREAM));
  inheritance.session = session.theirs.get();
  ForkedWorker worker;
  BATON_ASSIGN_OR_RETURN(worker.process,
                         ForkChild([&] { RunChild(program, code, inheritance, output); }));
  worker.session = std::move(session.ours);
  return worker;
}

}  // namespace baton::driver_process
