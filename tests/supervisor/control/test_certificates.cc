#include "tests/supervisor/control/test_certificates.h"

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lib/base/check.h"

namespace baton {
namespace {

constexpr char kConfiguration[] =
    "[req]\ndistinguished_name=dn\n[dn]\n"
    "[authority]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\n"
    "[leaf]\nbasicConstraints=critical,CA:FALSE\n";

}  // namespace

TestCertificates::TestCertificates() {
  char directory[] = "/tmp/baton-certificates-XXXXXX";
  BATON_CHECK(mkdtemp(directory) != nullptr);
  directory_ = directory;
  std::ofstream(directory_ + "/openssl.cnf") << kConfiguration;
}

TestCertificates::~TestCertificates() { std::filesystem::remove_all(directory_); }

void TestCertificates::Run(const std::string& name, const std::string& arguments) const {
  const std::string command =
      "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -config " +
      directory_ + "/openssl.cnf -keyout " + directory_ + "/new.key -out " + directory_ +
      "/new.crt " + arguments + " 2>" + directory_ + "/openssl.log";
  BATON_CHECK(std::system(command.c_str()) == 0);
  std::filesystem::rename(directory_ + "/new.key", Key(name));
  std::filesystem::rename(directory_ + "/new.crt", Certificate(name));
}

void TestCertificates::MakeAuthority(const std::string& name) const {
  Run(name, "-extensions authority -subj '/CN=" + name + "'");
}

void TestCertificates::Make(const std::string& authority, const std::string& name,
                            const std::string& common_name, const std::string& alternatives) const {
  Run(name, "-extensions leaf -subj '/CN=" + common_name + "' -CA " + Certificate(authority) +
                " -CAkey " + Key(authority) +
                (alternatives.empty() ? "" : " -addext 'subjectAltName=" + alternatives + "'"));
}

}  // namespace baton
