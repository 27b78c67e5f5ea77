// The checks, by what they look at. Each adds its findings to the report, at least one if it
// applies, and looks at nothing but its view.
#ifndef SUPERVISOR_DOCTOR_CHECKS_H_
#define SUPERVISOR_DOCTOR_CHECKS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/arena/layout.h"
#include "lib/driver/device_needs.h"
#include "proto/baton/v1/config.pb.h"
#include "proto/baton/v1/doctor.pb.h"
#include "supervisor/doctor/doctor.h"
#include "supervisor/doctor/machine.h"
#include "supervisor/doctor/rdma_devices.h"

namespace baton::doctor {

// The subject of a finding.
struct Place {
  std::string check;
  std::string subject = {};
};

struct Trouble {
  std::string message;
  std::string consequence;
  std::string cure;
};

class Report {
 public:
  void Ok(Place place, std::string message) {
    Add(v1::SEVERITY_OK, std::move(place), {std::move(message), "", ""});
  }
  void Add(v1::Severity severity, Place place, Trouble trouble) {
    v1::Finding& finding = *report_.add_findings();
    finding.set_severity(severity);
    finding.set_check(std::move(place.check));
    finding.set_subject(std::move(place.subject));
    finding.set_message(std::move(trouble.message));
    finding.set_consequence(std::move(trouble.consequence));
    finding.set_cure(std::move(trouble.cure));
    if (severity == v1::SEVERITY_PROBLEM) report_.set_problems(report_.problems() + 1);
    if (severity == v1::SEVERITY_WARNING) report_.set_warnings(report_.warnings() + 1);
  }

  const v1::DoctorReport& report() const { return report_; }
  int findings() const { return report_.findings_size(); }

 private:
  v1::DoctorReport report_;
};

// The needs of one service. They are those of its driver, because one process has the service's
// device.
struct ServiceNeeds {
  v1::ServiceConfig config;  // complete
  arena::Shape shape = {};
  driver::DeviceNeeds of_device;
  // An estimate of the queues' memory, which a provider such as mlx5 pins, too. Other providers do
  // not.
  uint64_t queue_bytes = 0;
  uint64_t memory_bytes = 0;  // of its arena, without buffers that are to be on pages of the pool
  uint64_t huge_page_bytes = 0;  // of those pages; 0: the service asks for none
  uint64_t descriptors = 0;      // open at once, estimated

  const std::string& name() const { return config.name(); }
  bool rdma() const { return config.device().has_rdma(); }
  uint32_t port() const { return config.device().rdma().port(); }
};

struct View : Request {
  View(const Machine& its_machine, const Request& request);

  const Machine& machine;
  bool configured;                     // `services` are those of a configuration
  std::vector<ServiceNeeds> services;  // without a configuration one of default size
  std::vector<RdmaDevice> devices;

  bool wants_rdma() const;  // a configured service does
  // The severity of a finding that prevents RDMA altogether. It is a problem unless no service
  // wants RDMA.
  v1::Severity severity() const;
  // The process whose limits are checked: batond, if it runs; otherwise this one.
  std::optional<int> batond_pid;
  std::string process() const;  // "/proc/4711"
  std::string whose() const;    // "of batond (pid 4711)", "of this shell"

  // Returns the cure of changing a line of the service in the configuration.
  std::string Change(const ServiceNeeds& service, const std::string& line) const;

  // Returns the service's device; null if there is none, or more than one to choose from.
  const RdmaDevice* DeviceOf(const ServiceNeeds& service) const;
  bool IsSoftRoce(const RdmaDevice& device) const;
};

// modules.cc
void CheckKernel(const View& view, Report& report);
void CheckModules(const View& view, Report& report);
void CheckNoDevice(const View& view, Report& report);
void CheckNamespaces(const View& view, Report& report);
void CheckLibrary(const View& view, Report& report);
// devices.cc
void CheckNodes(const View& view, Report& report);
void CheckGroup(const View& view, Report& report);
bool MayOpenNodes(const View& view, const RdmaDevice& device);
void CheckDevices(const View& view, Report& report);
// limits.cc
void CheckLockedMemory(const View& view, Report& report);
void CheckDescriptors(const View& view, Report& report);
void CheckMemory(const View& view, Report& report);
void CheckHugePages(const View& view, Report& report);
void CheckSharedMemory(const View& view, Report& report);
// Returns whether batond has, or would have, capability `number` of capability.h.
bool HasCapability(const View& view, uint32_t number);
void CheckControlGroup(const View& view, Report& report);
// huge_pages.cc
void CheckPagesOfThePool(const View& view, Report& report);
// processors.cc
void CheckPlacement(const View& view, Report& report);
void CheckClock(const View& view, Report& report);
// services.cc
void CheckServices(const View& view, Report& report);
void CheckNetworks(const View& view, Report& report);
// batond.cc
void CheckStateDirectory(const View& view, Report& report);
void CheckVersions(const View& view, Report& report);

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_CHECKS_H_
