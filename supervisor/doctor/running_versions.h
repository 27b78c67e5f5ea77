#ifndef SUPERVISOR_DOCTOR_RUNNING_VERSIONS_H_
#define SUPERVISOR_DOCTOR_RUNNING_VERSIONS_H_

#include <map>
#include <string>

#include "proto/baton/v1/types.pb.h"

namespace baton::doctor {

// The versions that a running Baton reports of its parts.
struct RunningVersions {
  std::string own_release;  // of the program that asks
  v1::Version control;
  std::map<std::string, v1::Version> keepers;  // by service
  std::string problem;                         // why it said nothing; then the rest is not known
  // The number of workers by service and by the version of the library that they were built with.
  // The version "": the workers did not report it.
  std::map<std::string, std::map<std::string, int>> workers = {};
};

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_RUNNING_VERSIONS_H_
