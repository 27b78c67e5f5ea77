// Certificates for one test, made by openssl(1) in a directory of their own.
#ifndef TESTS_SUPERVISOR_CONTROL_TEST_CERTIFICATES_H_
#define TESTS_SUPERVISOR_CONTROL_TEST_CERTIFICATES_H_

#include <string>
#include <vector>

namespace baton {

class TestCertificates {
 public:
  TestCertificates();
  ~TestCertificates();

  // Files NAME.crt and NAME.key, of an authority.
  void MakeAuthority(const std::string& name) const;
  // The same, signed by `authority`. `alternatives`: "DNS:a.example,URI:spiffe://b", or empty.
  // What is there under that name is replaced, each file at once.
  void Make(const std::string& authority, const std::string& name, const std::string& common_name,
            const std::string& alternatives = "") const;

  // File NAME.crl: what `authority` has revoked, for a day from now; or for one that is over.
  void MakeRevocations(const std::string& authority, const std::string& name,
                       const std::vector<std::string>& revoked, bool expired = false) const;

  std::string Revocations(const std::string& name) const {
    return directory_ + "/" + name + ".crl";
  }
  std::string Certificate(const std::string& name) const {
    return directory_ + "/" + name + ".crt";
  }
  std::string Key(const std::string& name) const { return directory_ + "/" + name + ".key"; }

 private:
  void Run(const std::string& name, const std::string& arguments) const;

  std::string directory_;
};

}  // namespace baton

#endif  // TESTS_SUPERVISOR_CONTROL_TEST_CERTIFICATES_H_
