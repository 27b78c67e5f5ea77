// The files of worker/kit/template, in which @NAME@ stands for the name of the new service.
#ifndef SUPERVISOR_CLI_NEW_SERVICE_H_
#define SUPERVISOR_CLI_NEW_SERVICE_H_

namespace baton::new_service {

extern const char k_CMakeLists[];    // CMakeLists.txt
extern const char k_service[];       // @NAME@.cpp
extern const char k_service_test[];  // @NAME@_test.cpp

}  // namespace baton::new_service

#endif  // SUPERVISOR_CLI_NEW_SERVICE_H_
