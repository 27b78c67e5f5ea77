#ifndef SUPERVISOR_DOCTOR_REPORT_H_
#define SUPERVISOR_DOCTOR_REPORT_H_

#include <string>
#include <utility>

#include "proto/baton/v1/doctor.pb.h"

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

 private:
  v1::DoctorReport report_;
};

}  // namespace baton::doctor

#endif  // SUPERVISOR_DOCTOR_REPORT_H_
