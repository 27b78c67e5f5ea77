// The reports of `baton inspect` and `baton doctor`, for people.
#ifndef SUPERVISOR_CLI_REPORTS_H_
#define SUPERVISOR_CLI_REPORTS_H_

#include <ostream>

#include "proto/baton/v1/doctor.pb.h"
#include "proto/baton/v1/inspect.pb.h"
#include "supervisor/cli/table.h"

namespace baton {

struct InspectionParts {
  bool queues = false;  // cursors of all connections that are shown
  bool work_requests = false;
  bool state = false;
};

void PrintInspection(std::ostream& out, const v1::Inspection& inspection,
                     const InspectionParts& parts, const TableStyle& style = {});

// Prints a line for each finding, with consequence and cure below those that need them, and the sum
// at the end.
void PrintDoctorReport(std::ostream& out, const v1::DoctorReport& report,
                       const TableStyle& style = {});

}  // namespace baton

#endif  // SUPERVISOR_CLI_REPORTS_H_
