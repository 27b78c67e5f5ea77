#ifndef SUPERVISOR_DOCTOR_RUNNING_VERSIONS_H_
#define SUPERVISOR_DOCTOR_RUNNING_VERSIONS_H_

#include <map>
#include <string>

#include "proto/baton/v1/types.pb.h"

namespace baton::doctor {

// What a Baton that runs says of its parts.
struct RunningVersions {
  std::string own_release;  // of the program that asks
  v1::Version control;
  std::map<std::string, v1::Version> keepers;  // by service
  std::string problem;                         // why it said nothing; then the rest is not known
  // Of the library that workers were built with, by service: how many have which; "": they did not
  // say.
  std::map<std::string, std::map<std::string, int>> workers = {};
};

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_RUNNING_VERSIONS_H_
