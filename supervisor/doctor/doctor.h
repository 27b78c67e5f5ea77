// `baton doctor`: checks whether this machine has what Baton needs, and says what to do if not.
#ifndef SUPERVISOR_DOCTOR_DOCTOR_H_
#define SUPERVISOR_DOCTOR_DOCTOR_H_

#include <map>
#include <optional>
#include <string>

#include "proto/baton/v1/config.pb.h"
#include "proto/baton/v1/doctor.pb.h"
#include "proto/baton/v1/types.pb.h"
#include "supervisor/doctor/machine.h"

namespace baton::doctor {

// The versions that a running Baton reports of its parts.
struct RunningVersions {
  std::string own_release;  // of the program that asks
  v1::Version control;
  std::map<std::string, v1::Version> keepers;  // by service
  std::string problem;                         // why Baton did not answer; then the rest is empty
  // The number of workers by service and by the version of the library that they were built with.
  // The version "": the workers did not report it.
  std::map<std::string, std::map<std::string, int>> workers = {};
};

struct Request {
  Identity identity;
  std::string state_dir;             // used without a configuration
  std::string config_file;           // its name, in cures
  std::optional<v1::Config> config;  // complete
  // None: batond does not run, or was not asked.
  std::optional<RunningVersions> running;
};

std::string StateDirOf(const Request& request);
// Returns the pid of the batond with that state directory, if it runs.
std::optional<int> RunningBatond(const Machine& machine, const std::string& state_dir);

v1::DoctorReport Diagnose(const Machine& machine, const Request& request);

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_DOCTOR_H_
