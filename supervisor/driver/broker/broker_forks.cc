#include "supervisor/driver/broker/broker_forks.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/program_start.h"
#include "lib/base/status.h"
#include "supervisor/batond/spawn.h"
#include "supervisor/driver/broker/broker_object.h"
#include "supervisor/driver/broker/broker_table.h"
#include "supervisor/driver/workers/spawn_plan.h"

namespace baton::driver_process {
namespace {

// It stays the user that `baton-driver` is.
Identity IdentityOf(const EngineOptions& options) {
  Identity identity;
  identity.realtime_priority = options.realtime_priority;
  identity.may_hurry = options.realtime_priority != 0;
  return identity;
}

bool IsAt(const std::string& path, int descriptor) {
  struct stat there = {}, open = {};
  return stat(path.c_str(), &there) == 0 && fstat(descriptor, &open) == 0 &&
         there.st_dev == open.st_dev && there.st_ino == open.st_ino;
}

// Loads the open file, by its path if it is still there: debuggers look for it by that name.
void* LoadFile(int descriptor) {
  const std::string path = PlaceOfOpenFile(descriptor);
  if (IsAt(path, descriptor)) {
    void* const loaded = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (loaded == nullptr || IsAt(path, descriptor)) return loaded;
  }
  return dlopen(OpenFilePath(descriptor).c_str(), RTLD_NOW | RTLD_LOCAL);
}

absl::StatusOr<const BatonBrokerObject*> LoadCode(int descriptor) {
  void* const loaded = LoadFile(descriptor);
  const auto* const object =
      loaded == nullptr
          ? nullptr
          : static_cast<const BatonBrokerObject*>(dlsym(loaded, BATON_BROKER_OBJECT_SYMBOL));
  if (object == nullptr) {
    const char* const why = dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat("it is no broker's code: ", why != nullptr ? why : "it exports none"));
  }
  if (object->version != BATON_BROKER_VERSION || object->bytes < sizeof(*object)) {
    return absl::FailedPreconditionError(
        absl::StrCat("it (release ", object->baton_release, ") has version ", object->version,
                     " of what brokers and baton-driver have between them, and this baton-driver ",
                     BATON_BROKER_VERSION, ": it comes into use with the service's next start"));
  }
  return object;
}

// Returns only with an error.
absl::Status BecomeBroker(BrokerInheritance inheritance, int object) {
  BATON_ASSIGN_OR_RETURN(
      inheritance.lifeline,
      ConfineChild({.arena = inheritance.arena,
                    .device = inheritance.device,
                    .descriptors =
                        [&] {
                          std::vector<int> kept = inheritance.wakes->descriptors();
                          kept.insert(kept.end(),
                                      {inheritance.messages, inheritance.wake,
                                       inheritance.host_wake, inheritance.news, object});
                          return kept;
                        }(),
                    .lifeline = inheritance.lifeline,
                    .identity = IdentityOf(inheritance.options)}));
  BATON_ASSIGN_OR_RETURN(const BrokerTable table, BrokerTable::Of(inheritance));
  BATON_ASSIGN_OR_RETURN(const BatonBrokerObject* const code, LoadCode(object));
  (void)close(object);
  return absl::InternalError(code->run(&table.host()));
}

void RunBroker(BrokerInheritance inheritance, const ProgramFile& object) {
  BeginChild("baton-broker");
  BoardStatus& failed = inheritance.board->failed[inheritance.place];
  failed.Store(BecomeBroker(std::move(inheritance), object.descriptor()));
}

std::string PlaceOf(const std::string& object) {
  const int open = OpenFileOf(object);
  return open < 0 ? object : PlaceOfOpenFile(open);
}

class PlacedForks final : public BrokerForks {
 public:
  PlacedForks(const std::string& object, std::function<void(const std::function<void()>&)> place)
      : object_(PlaceOf(object), {}, object), place_(std::move(place)) {}

  absl::StatusOr<ForkedChild> Fork(BrokerInheritance inheritance, Code code) override {
    BATON_ASSIGN_OR_RETURN(const ProgramFile object,
                           code == Code::kNext ? object_.ToRun() : object_.Proven());
    absl::StatusOr<ForkedChild> child = absl::UnknownError("");
    place_([&] { child = ForkChild([&] { RunBroker(std::move(inheritance), object); }); });
    return child;
  }
  std::string Reap(int pidfd) override { return ReapProgram(pidfd); }
  void Kill(int pidfd) override { (void)SendSignal(pidfd, SIGKILL); }
  absl::Status ReplaceCode(std::chrono::milliseconds probation) override {
    return object_.Replace(probation);
  }
  std::chrono::milliseconds probation() const override { return object_.probation(); }
  void ProveCode() override { object_.Prove(); }
  void GiveUpCode() override { object_.GiveUp(); }

 private:
  ReplaceableProgram object_;
  const std::function<void(const std::function<void()>&)> place_;
};

}  // namespace

std::unique_ptr<BrokerForks> RealBrokerForks(
    std::string object, std::function<void(const std::function<void()>&)> place) {
  return std::make_unique<PlacedForks>(object, std::move(place));
}

}  // namespace baton::driver_process
