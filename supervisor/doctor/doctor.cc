#include "supervisor/doctor/doctor.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "supervisor/config/state_files.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {

// The lock's file names the last batond that had it; the process may be another by now.
std::optional<int> RunningBatond(const Machine& machine, const std::string& state_dir) {
  const std::optional<std::string> text = machine.Read(BatondLockPath(state_dir));
  int pid = 0;
  if (!text || !absl::SimpleAtoi(*text, &pid)) return std::nullopt;
  if (machine.Read(absl::StrCat("/proc/", pid, "/comm")) != "batond") return std::nullopt;
  return pid;
}

std::string StateDirOf(const Request& request) {
  return request.config ? request.config->state_dir() : request.state_dir;
}

View::View(const Machine& its_machine, const Request& request)
    : Request(request),
      machine(its_machine),
      configured(config.has_value()),
      services(config ? NeedsOf(*config) : std::vector<ServiceNeeds>{DefaultNeeds()}),
      devices(ReadRdmaDevices(machine)) {
  state_dir = StateDirOf(request);
  batond_pid = RunningBatond(machine, state_dir);
}

bool View::wants_rdma() const {
  return configured && std::any_of(services.begin(), services.end(),
                                   [](const ServiceNeeds& service) { return service.rdma(); });
}

v1::Severity View::severity() const {
  return configured && !wants_rdma() ? v1::SEVERITY_WARNING : v1::SEVERITY_PROBLEM;
}

std::string View::process() const {
  return batond_pid ? absl::StrCat("/proc/", *batond_pid) : "/proc/self";
}

std::string View::whose() const {
  return batond_pid ? absl::StrCat("of batond (pid ", *batond_pid, ")") : "of this shell";
}

std::string View::Change(const ServiceNeeds& service, const std::string& line) const {
  return absl::StrCat("in ", config_file, ", service ", service.name(), ": ", line);
}

const RdmaDevice* View::Find(const std::string& device) const {
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const RdmaDevice& d) { return d.name == device; });
  return found == devices.end() ? nullptr : &*found;
}

const RdmaDevice* View::DeviceOf(const ServiceNeeds& service) const {
  if (!service.config.device().rdma().device().empty())
    return Find(service.config.device().rdma().device());
  return devices.size() == 1 ? &devices.front() : nullptr;
}

v1::DoctorReport Diagnose(const Machine& machine, const Request& request) {
  const View view(machine, request);
  Report report;
  CheckKernel(view, report);
  CheckNamespaces(view, report);
  if (view.devices.empty()) {
    CheckNoDevice(view, report);
  } else {
    CheckModules(view, report);
    CheckLibraries(view, report);
    CheckGroup(view, report);
    CheckNodes(view, report);
    CheckDevices(view, report);
    CheckLockedMemory(view, report);
  }
  CheckNetworks(view, report);
  CheckServices(view, report);
  CheckPlacement(view, report);
  CheckDescriptors(view, report);
  CheckMemory(view, report);
  CheckHugePages(view, report);
  CheckSharedMemory(view, report);
  CheckControlGroup(view, report);
  CheckClock(view, report);
  CheckStateDirectory(view, report);
  CheckVersions(view, report);
  return report.report();
}

}  // namespace baton::doctor
