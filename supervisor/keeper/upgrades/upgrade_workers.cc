#include "supervisor/keeper/upgrades/upgrade_workers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "supervisor/keeper/sessions/worker_sessions.h"

namespace baton::keeper {
namespace {

std::string WhyUnfit(const WorkerInfo& worker) {
  if (!worker.ready) return absl::StrCat("worker ", worker.id, " has attached and is not ready");
  if (!worker.healthy) return absl::StrCat("worker ", worker.id, " says that it is unhealthy");
  return "";
}

}  // namespace

std::string EndedTooSoon(const internal::StartedWorker& process, const std::string& how) {
  return absl::StrCat("process ", process.pid(), " ", how,
                      " before it was ready: see its output in the keeper's log");
}

UpgradeWorkers::UpgradeWorkers(const KeeperParts& context,
                               std::function<void(const internal::StartedWorker&)> on_end)
    : context_(context), processes_(context_.loop, context_.programs, std::move(on_end)) {}

void UpgradeWorkers::Hold(internal::HeldUpgrade* held) const {
  for (const uint64_t worker : old_ids_) held->add_old_workers(worker);
  for (const uint64_t worker : new_ids_) held->add_new_workers(worker);
  for (const internal::StartedWorker& one : processes_.List()) *held->add_processes() = one;
}

void UpgradeWorkers::Continue(const internal::HeldUpgrade& held) {
  old_ids_.insert(held.old_workers().begin(), held.old_workers().end());
  new_ids_.insert(held.new_workers().begin(), held.new_workers().end());
  for (const internal::StartedWorker& process : held.processes()) {
    processes_.Watch(process, context_.programs.PidfdOf(process.pid()));
  }
}

// Takes the workers that are ready, without those of process `but`.
void UpgradeWorkers::EnterOld(pid_t but, v1::Upgrade* upgrade) {
  for (const WorkerInfo& worker : context_.workers.List()) {
    if (!worker.ready || worker.pid == but) continue;
    old_ids_.insert(worker.id);
    upgrade->add_old_worker_ids(worker.id);
    upgrade->set_old_version(worker.version);
  }
}

void UpgradeWorkers::TakeOver(const WorkerInfo& worker, v1::Upgrade* upgrade) {
  EnterOld(worker.pid, upgrade);
  for (const WorkerInfo& one : context_.workers.List()) {
    if (one.pid != worker.pid) continue;
    new_ids_.insert(one.id);
    upgrade->add_new_worker_ids(one.id);
    context_.driver.ChangeWorker(one.slot, one.id, internal::ChangeWorker::STANDS_LAST);
  }
  upgrade->set_new_version(worker.version);
}

absl::StatusOr<uint32_t> UpgradeWorkers::TakeOld(uint32_t planned, v1::Upgrade* upgrade) {
  EnterOld(/*but=*/-1, upgrade);
  const uint32_t count = planned != 0 ? planned : std::max<uint32_t>(1, old_ids_.size());
  if (count > context_.workers.free_slots()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "workers: ", count, " new ones do not fit beside those attached, there is room for ",
        context_.workers.free_slots(), ": raise max_workers"));
  }
  return count;
}

bool UpgradeWorkers::TakeNew(uint64_t worker_id, pid_t pid, v1::Upgrade* upgrade) {
  const bool took_over = processes_.List().empty() && FindProcess(ListNew(), pid) != nullptr;
  if (!took_over && !processes_.NoteAttached(pid, worker_id)) return false;
  if (new_ids_.insert(worker_id).second) upgrade->add_new_worker_ids(worker_id);
  const std::vector<WorkerInfo> workers = context_.workers.List();
  if (const WorkerInfo* const worker = FindWorker(workers, worker_id)) {
    upgrade->set_new_version(worker->version);
  }
  return true;
}

bool UpgradeWorkers::HasOldVersion(uint64_t worker_id, const v1::Upgrade& upgrade) const {
  const std::vector<WorkerInfo> others = ListAllButNew();
  const WorkerInfo* const worker = FindWorker(others, worker_id);
  return worker != nullptr && worker->version == upgrade.old_version() &&
         worker->version != upgrade.new_version();
}

bool UpgradeWorkers::TakeLateOld(uint64_t worker_id, const v1::Upgrade& upgrade) {
  if (!HasOldVersion(worker_id, upgrade)) return false;
  const std::vector<WorkerInfo> workers = context_.workers.List();
  return FindWorker(workers, worker_id)->ready && old_ids_.insert(worker_id).second;
}

std::string UpgradeWorkers::ForgetNew(uint64_t worker_id, const std::string& kill_cause) {
  if (new_ids_.erase(worker_id) == 0) return "";
  std::string how = "died or detached";  // only the parent of a process learns how it ended
  if (const std::optional<std::string> ended = processes_.HowEnded(worker_id)) {
    how = ended->empty() ? "detached" : *ended;
  }
  if (!kill_cause.empty()) how = absl::StrCat("was killed: ", kill_cause);
  lost_ = absl::StrCat("worker ", worker_id, " ", how);
  return lost_;
}

std::vector<WorkerInfo> UpgradeWorkers::Attached(const std::set<uint64_t>& worker_ids) const {
  std::vector<WorkerInfo> attached = context_.workers.List();
  std::erase_if(attached, [&](const auto& worker) { return worker_ids.count(worker.id) == 0; });
  return attached;
}

std::vector<WorkerInfo> UpgradeWorkers::ListAllButNew() const {
  std::vector<WorkerInfo> others = context_.workers.List();
  std::erase_if(others, [&](const auto& worker) { return new_ids_.count(worker.id) != 0; });
  return others;
}

std::string UpgradeWorkers::WhyNotReady() const {
  for (const internal::StartedWorker& process : processes_.List()) {
    if (process.worker_id() == 0) {
      return absl::StrCat("process ", process.pid(), " has not attached");
    }
  }
  for (const WorkerInfo& worker : ListNew()) {
    if (const std::string why = WhyUnfit(worker); !why.empty()) return why;
  }
  return "";
}

std::string UpgradeWorkers::WhyNeverReady() const {
  for (const internal::StartedWorker& process : processes_.List()) {
    if (!process.how_ended().empty()) return EndedTooSoon(process, process.how_ended());
    if (process.worker_id() == 0 || context_.workers.IsAttached(process.worker_id())) continue;
    return lost_.empty() ? EndedTooSoon(process, "has left") : lost_;
  }
  return "";
}

}  // namespace baton::keeper
