// `baton doctor`: whether this machine has what Baton needs, and what to do where it has not.
#ifndef SUPERVISOR_DOCTOR_DOCTOR_H_
#define SUPERVISOR_DOCTOR_DOCTOR_H_

#include <optional>
#include <string>

#include "proto/baton/v1/config.pb.h"
#include "proto/baton/v1/doctor.pb.h"
#include "supervisor/doctor/identity.h"
#include "supervisor/doctor/machine.h"
#include "supervisor/doctor/running_versions.h"

namespace baton::doctor {

struct Request {
  Identity identity;
  std::string state_dir;             // where there is no configuration
  std::string config_file;           // its name, in cures
  std::optional<v1::Config> config;  // complete
  // None: nobody was asked, or nobody is there.
  std::optional<RunningVersions> running;
};

// The state directory that a request is about.
std::string StateDirOf(const Request& request);
// Its process, when it runs.
std::optional<int> RunningBatond(const Machine& machine, const std::string& state_dir);

v1::DoctorReport Diagnose(const Machine& machine, const Request& request);

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_DOCTOR_H_
