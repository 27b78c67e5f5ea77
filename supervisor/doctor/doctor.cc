#include "supervisor/doctor/doctor.h"

#include <initializer_list>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "supervisor/config/config.h"
#include "supervisor/config/shape.h"
#include "supervisor/config/state_files.h"
#include "supervisor/doctor/checks.h"

namespace baton::doctor {
namespace {

// mlx5's sizes of an entry with arena::kMaxSges pieces: 128 bytes a send, 64 a receive, 64 a
// completion (mlx5dv.h).
constexpr uint64_t kSendEntryBytes = 128;
constexpr uint64_t kReceiveEntryBytes = 64;
constexpr uint64_t kCompletionEntryBytes = 64;

// The most descriptors of a driver, or of its NIC on the soft device: for each connection, for each
// worker, and for itself, with what it holds for workers.
constexpr uint64_t kDescriptorsPerConnection = 2;
constexpr uint64_t kDescriptorsPerWorker = 8;
constexpr uint64_t kDescriptorsOfADriver = 64 + 256;

uint64_t QueueBytes(const driver::DeviceNeeds& needs) {
  return needs.queue_pairs * (needs.send_requests * (kSendEntryBytes + needs.inline_bytes) +
                              needs.receive_requests * kReceiveEntryBytes) +
         needs.completion_queues * needs.completion_queue_entries * kCompletionEntryBytes +
         needs.shared_receive_queues * needs.shared_receive_requests * kReceiveEntryBytes;
}

ServiceNeeds NeedsOf(const v1::ServiceConfig& service) {
  ServiceNeeds needs;
  needs.config = service;
  needs.shape = ShapeOf(service);
  needs.of_device = driver::NeedsOf(needs.shape, MayHaveBrokers(service));
  needs.queue_bytes = QueueBytes(needs.of_device);
  needs.memory_bytes = arena::WorkerMemoryMap(needs.shape).total +
                       arena::DriverMemoryMap(needs.shape).total +
                       arena::RecoveryMemoryMap(needs.shape).total;
  needs.huge_page_bytes = PageBytesOf(service.huge_pages());
  if (needs.huge_page_bytes == 0) needs.memory_bytes += needs.shape.buffer_bytes;
  needs.descriptors = needs.shape.connections * kDescriptorsPerConnection +
                      needs.shape.workers * kDescriptorsPerWorker + kDescriptorsOfADriver;
  return needs;
}

// Returns the needs of a service of default size on an RDMA device.
ServiceNeeds DefaultNeeds() {
  v1::Config config;
  config.set_state_dir("/run/baton");
  config.add_services()->set_name("default");
  config.mutable_services(0)->mutable_device()->mutable_rdma();
  CompleteConfig(config).IgnoreError();
  return NeedsOf(config.services(0));
}

}  // namespace

// The lock's file names the last batond that had it. Another process may have that pid by now.
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
      devices(ReadRdmaDevices(machine)) {
  if (!config) services.push_back(DefaultNeeds());
  if (config) absl::c_transform(config->services(), std::back_inserter(services), NeedsOf);
  for (ServiceNeeds& service : services) {
    const RdmaDevice* const device = service.rdma() ? DeviceOf(service) : nullptr;
    if (device == nullptr || IsSoftRoce(*device) || service.config.has_broker_processes()) continue;
    service.config.set_broker_processes(false);  // as its driver does
    service = NeedsOf(service.config);
  }
  state_dir = StateDirOf(request);
  batond_pid = RunningBatond(machine, state_dir);
}

bool View::wants_rdma() const {
  return configured && absl::c_any_of(services, [](const auto& one) { return one.rdma(); });
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

const RdmaDevice* View::DeviceOf(const ServiceNeeds& service) const {
  const std::string& name = service.config.device().rdma().device();
  if (name.empty()) return devices.size() == 1 ? &devices.front() : nullptr;
  const auto found =
      absl::c_find_if(devices, [&](const RdmaDevice& device) { return device.name == name; });
  return found == devices.end() ? nullptr : &*found;
}

// Only rxe has this file in sysfs.
bool View::IsSoftRoce(const RdmaDevice& device) const {
  return machine.Read("/sys/class/infiniband/" + device.name + "/parent").has_value();
}

v1::DoctorReport Diagnose(const Machine& machine, const Request& request) {
  const View view(machine, request);
  Report report;
  const auto run = [&](std::initializer_list<void (*)(const View&, Report&)> checks) {
    for (const auto check : checks) check(view, report);
  };
  run({CheckKernel, CheckNamespaces});
  if (view.devices.empty()) {
    CheckNoDevice(view, report);
  } else {
    run({CheckModules, CheckLibrary, CheckGroup, CheckNodes, CheckDevices, CheckLockedMemory});
  }
  run({CheckNetworks, CheckServices, CheckPlacement, CheckDescriptors, CheckMemory, CheckHugePages,
       CheckPagesOfThePool, CheckSharedMemory, CheckControlGroup, CheckClock, CheckStateDirectory,
       CheckVersions});
  return report.report();
}

}  // namespace baton::doctor
