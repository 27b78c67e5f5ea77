// The report of `baton inspect` for people.
#ifndef SUPERVISOR_CLI_INSPECT_REPORT_H_
#define SUPERVISOR_CLI_INSPECT_REPORT_H_

#include <ostream>

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

}  // namespace baton

#endif  // SUPERVISOR_CLI_INSPECT_REPORT_H_
