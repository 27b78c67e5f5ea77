#ifndef SUPERVISOR_CLI_DOCTOR_REPORT_H_
#define SUPERVISOR_CLI_DOCTOR_REPORT_H_

#include <ostream>

#include "proto/baton/v1/doctor.pb.h"
#include "supervisor/cli/table.h"

namespace baton {

// For people: a line for each finding, with consequence and cure below those that need them, and
// the sum at the end.
void PrintDoctorReport(std::ostream& out, const v1::DoctorReport& report,
                       const TableStyle& style = {});

}  // namespace baton

#endif  // SUPERVISOR_CLI_DOCTOR_REPORT_H_
